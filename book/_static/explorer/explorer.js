// The explorer page: Eq. 7 weighed anew in the browser. The terms, and the accuracies of all sets of
// layers, come from data/explorer.py, one script an example; here they are only added up and drawn.
(() => {
  "use strict";
  const root = document.getElementById("loes-explorer");
  if (!root) return;
  const folder = document.currentScript.src.replace(/[^/]*$/, "");

  const EXAMPLES = {
    topics: "MiniLM, newsgroup topics (7 layers)",
    "intents-e5": "e5-small, intents (13 layers)",
    animals: "DINOv2-S, animals (13 layers)",
  };
  const CRITERIA = { paper: "paper", bounded: "bounded" };
  const WEIGHTS = { alpha: "α, weight of isotropy", gamma: "γ, weight of redundancy", eta: "η, weight of triangles" };
  const STEPS = 3;
  // How each term enters the score; a row of raw terms is [loss, iso, red, tri].
  const TERMS = [
    { id: "loss", label: "Loss", part: ([loss]) => loss },
    { id: "iso", label: "α(1 − Iso)", part: ([, iso], w) => w.alpha * (1 - iso) },
    { id: "red", label: "γ Red", part: ([, , red], w) => w.gamma * red },
    { id: "tri", label: "−η Tri", part: ([, , , tri], w) => -w.eta * tri },
  ];

  // ---- the selection ------------------------------------------------------------------------

  function select(data, { criterion, k, noise, weights }) {
    const steps = [], picks = [];
    while (picks.length < k) {
      const rows = [];
      data.terms[criterion][picks.join("-")].forEach((raw, layer) => {
        if (!raw || (!noise && layer === data.layers.length - 1)) return;
        // Red and Tri are null, and stay so, before the first pick.
        const parts = TERMS.map(({ part }, i) => (raw[i] === null ? null : part(raw, weights)));
        rows.push({ layer, parts, score: parts.reduce((sum, p) => sum + (p ?? 0), 0) });
      });
      const winner = rows.reduce((best, row) => (row.score < best.score ? row : best));
      steps.push({ rows, winner });
      picks.push(winner.layer);
    }
    return { steps, picks };
  }

  const accuracy = (data, layers) => data.accuracy[[...layers].sort((a, b) => a - b).join("-")];

  function bestSingle(data) {
    const real = [...Array(data.layers.length - 1).keys()];
    return real.reduce((best, l) => (accuracy(data, [l]) > accuracy(data, [best]) ? l : best));
  }

  // ---- sliders: position 0 is a weight of 0, the others are even on a logarithmic scale ---------

  const LOWEST = -4, PER_DECADE = 20, LAST = 5 * PER_DECADE + 1; // from 0.0001 to 10
  const toWeight = (position) =>
    position === 0 ? 0 : Number((10 ** (LOWEST + (position - 1) / PER_DECADE)).toPrecision(3));
  const toPosition = (weight) =>
    weight === 0 ? 0 : Math.min(LAST, Math.max(1, 1 + Math.round((Math.log10(weight) - LOWEST) * PER_DECADE)));

  // ---- the state, kept in the address --------------------------------------------------------

  // null stands for the weights of the criterion itself.
  const START = { example: "topics", criterion: "paper", k: 3, noise: false, weights: null };
  let state;

  function fromHash() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const one = (name, allowed) => (allowed.includes(asked.get(name)) ? asked.get(name) : String(START[name]));
    const weights = Object.fromEntries(Object.keys(WEIGHTS).map((w) => [w, weightOf(asked.get(w))]));
    return {
      example: one("example", Object.keys(EXAMPLES)),
      criterion: one("criterion", Object.keys(CRITERIA)),
      k: Number(one("k", ["1", "2", "3"])),
      noise: asked.get("noise") === "1",
      weights: Object.values(weights).includes(null) ? null : weights,
    };
  }

  let writing;

  function toHash() { // once the reader pauses: Safari throws at a page that writes a hundred times in ten seconds
    clearTimeout(writing);
    writing = setTimeout(() => {
      const { example, criterion, k, noise, weights } = state;
      const content = new URLSearchParams({ example, criterion, ...weights, k, noise: noise ? 1 : 0 });
      history.replaceState(null, "", `#${content}`);
    }, 200);
  }

  function weightOf(text) {
    const weight = text === null || text.trim() === "" ? NaN : Number(text);
    return Number.isFinite(weight) && weight >= 0 ? weight : null;
  }

  // ---- making elements -----------------------------------------------------------------------

  function make(tag, attributes = {}, ...children) {
    const vector = ["svg", "g", "rect", "line", "text", "title"].includes(tag);
    const element = vector ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  const options = (table) => Object.entries(table).map(([value, label]) => make("option", { value }, label));
  const find = (name) => root.querySelector(`[data-part="${name}"]`);
  const minus = (text) => text.replace("-", "−");
  const shown = (value) => (value === null ? "–" : minus(value.toFixed(3)));
  const percent = (share) => (100 * share).toFixed(1);

  function build() {
    const chooser = (id, label, table) =>
      make("p", {}, make("label", { for: `loes-${id}` }, label), make("select", { id: `loes-${id}` }, ...options(table)));
    const weight = ([name, label]) =>
      make("p", { class: "weight" },
        make("label", { for: `loes-${name}` }, label),
        make("input", { type: "range", id: `loes-${name}`, min: 0, max: LAST, step: 1 }),
        make("input", { type: "number", id: `loes-${name}-number`, min: 0, step: "any", "aria-label": `${label}, as a number` }));
    const step = (_, i) =>
      make("section", { "data-part": `step-${i}` }, make("h3", {}), make("div", { class: "chart" }), make("p", { class: "decided" }),
        make("details", {}, make("summary", {}, `Step ${i + 1} as a table`),
          make("div", { class: "numbers", tabindex: 0, role: "region", "aria-label": `Step ${i + 1} as a table` })));
    root.replaceChildren(
      make("form", {},
        chooser("example", "Model and task", EXAMPLES),
        chooser("criterion", "Criterion", CRITERIA),
        ...Object.entries(WEIGHTS).map(weight),
        chooser("k", "K, layers to pick", { 1: "1", 2: "2", 3: "3" }),
        make("p", { class: "check" }, make("input", { type: "checkbox", id: "loes-noise" }),
          make("label", { for: "loes-noise" }, "add a layer of pure noise to the candidates")),
        make("p", {}, make("button", { type: "reset" }, "Reset weights, K and noise")),
        make("p", { "data-part": "wrong", class: "wrong", role: "alert" })),
      make("p", { "data-part": "picks", class: "picks", "aria-live": "polite" }, "Loading …"),
      make("ul", { class: "legend", "aria-label": "Colours of the terms" },
        ...TERMS.map(({ id, label }) => make("li", {}, make("span", { class: `swatch ${id}`, "aria-hidden": "true" }), label)),
        make("li", {}, make("span", { class: "swatch score", "aria-hidden": "true" }), "score, their sum")),
      make("div", { class: "steps" }, ...Array.from({ length: STEPS }, step)),
      make("h3", {}, "Validation accuracy"),
      make("table", { "data-part": "accuracy", class: "accuracy" }),
      make("p", { "data-part": "caution" }));
  }

  // ---- drawing -------------------------------------------------------------------------------

  function ticks(low, high) { // at most six round numbers, with their decimals
    const rough = (high - low) / 5 || 1, power = 10 ** Math.floor(Math.log10(rough));
    const width = [1, 2, 5, 10].map((m) => m * power).find((w) => w >= rough);
    const decimals = Math.max(0, -Math.floor(Math.log10(width) + 1e-9));
    const first = Math.ceil(low / width - 1e-9), last = Math.floor(high / width + 1e-9);
    return Array.from({ length: last - first + 1 }, (_, i) => [(first + i) * width, minus(((first + i) * width).toFixed(decimals))]);
  }

  function chart({ rows, winner }, names, label) {
    const W = 360, LEFT = 96, RIGHT = 56, ROW = 20, TOP = 20, H = TOP + ROW * rows.length + 20;
    const sum = (row, sign) => row.parts.reduce((s, p) => s + (p * sign > 0 ? p : 0), 0);
    const low = Math.min(0, ...rows.map((row) => sum(row, -1))), high = Math.max(0, ...rows.map((row) => sum(row, 1)));
    const x = (value) => LEFT + ((value - low) / (high - low || 1)) * (W - LEFT - RIGHT - 6);
    const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label });
    const text = (left, top, anchor, content, style = "") =>
      svg.append(make("text", { x: left, y: top, "text-anchor": anchor, class: style }, content));
    for (const [value, name] of ticks(low, high)) {
      svg.append(make("line", { x1: x(value), x2: x(value), y1: TOP, y2: H - 18, class: "tick" }));
      text(x(value), H - 5, "middle", name, "small");
    }
    text(W - 4, 13, "end", "score", "small");
    rows.forEach((row, i) => {
      const top = TOP + ROW * i, won = row === winner;
      if (won) svg.append(make("rect", { x: 1, y: top + 0.5, width: W - 2, height: ROW - 1, class: "winner" }));
      const ends = { true: 0, false: 0 }; // of the bars to the left and to the right of zero
      row.parts.forEach((part, t) => {
        if (!part) return;
        const from = ends[part < 0], to = (ends[part < 0] += part);
        const bar = { x: Math.min(x(from), x(to)), y: top + 4, width: Math.abs(x(to) - x(from)), height: ROW - 8, class: TERMS[t].id };
        svg.append(make("rect", bar, make("title", {}, `${names[row.layer]}: ${TERMS[t].label} = ${shown(part)}`)));
      });
      svg.append(make("rect", { x: x(row.score) - 1.5, y: top + 2, width: 3, height: ROW - 4, class: "score" }));
      text(LEFT - 8, top + 14, "end", (won ? "★ " : "") + names[row.layer], won ? "strong" : "");
      text(W - 4, top + 14, "end", shown(row.score), won ? "strong" : "");
    });
    svg.append(make("line", { x1: x(0), x2: x(0), y1: TOP, y2: H - 18, class: "zero" }));
    return svg;
  }

  function row(cells, tag = "td") {
    return make("tr", {}, ...cells.map((cell, i) => make(i ? tag : "th", i ? (tag === "th" ? { scope: "col" } : {}) : { scope: tag === "th" ? "col" : "row" }, cell)));
  }

  function numbers({ rows, winner }, names) {
    const name = (r) => names[r.layer] + (r === winner ? " (picked)" : "");
    return make("table", {}, make("thead", {}, row(["Layer", ...TERMS.map((t) => t.label), "Score"], "th")),
      make("tbody", {}, ...rows.map((r) => row([name(r), ...r.parts.map(shown), shown(r.score)]))));
  }

  function decided({ rows, winner }, names) { // Chapter 9: what a pick owes to the labels
    const spread = (t) => Math.max(...rows.map((r) => r.parts[t])) - Math.min(...rows.map((r) => r.parts[t]));
    const present = TERMS.flatMap((_, t) => (rows[0].parts[t] === null ? [] : [t]));
    const largest = present.reduce((a, b) => (spread(b) > spread(a) ? b : a));
    const times = spread(largest) / spread(0);
    const size = largest === 0 ? "" : ` (${times >= 1000 ? "over 1000" : times >= 10 ? Math.round(times) : times.toFixed(1)} times the spread of the Loss)`;
    const without = rows.reduce((a, b) => (b.score - b.parts[0] < a.score - a.parts[0] ? b : a));
    const flat = rows.every((r) => r.score === r.parts[0]);
    const labels = flat ? "Only the Loss counts here."
      : `Without the Loss, the pick would be ${without === winner ? "the same" : names[without.layer]}.`;
    return `Largest spread: ${TERMS[largest].label}${size}. ${labels}`;
  }

  function show() {
    const data = window.LOES_EXPLORER?.[state.example];
    if (!data) return load(state.example);
    const own = data.defaults[state.criterion], names = data.layers;
    state.weights ??= { ...own };
    toHash();
    for (const id of ["example", "criterion", "k"]) root.querySelector(`#loes-${id}`).value = state[id];
    root.querySelector("#loes-noise").checked = state.noise;
    for (const [name, value] of Object.entries(state.weights)) {
      const slider = root.querySelector(`#loes-${name}`), number = root.querySelector(`#loes-${name}-number`);
      slider.value = toPosition(value);
      slider.setAttribute("aria-valuetext", String(value));
      if (weightOf(number.value) !== value) number.value = value; // not while it is being typed
    }
    const { steps, picks } = select(data, state), usual = select(data, { ...state, weights: own }).picks;
    steps.forEach((step, i) => {
      const part = find(`step-${i}`), won = names[step.winner.layer];
      part.querySelector("h3").textContent = `Step ${i + 1}: ${won}`;
      const label = `Step ${i + 1}: terms of ${step.rows.length} layers. The lowest score is that of ${won}, ${shown(step.winner.score)}. All numbers are in the table below.`;
      part.querySelector(".chart").replaceChildren(chart(step, names, label));
      part.querySelector(".decided").textContent = decided(step, names);
      part.querySelector(".numbers").replaceChildren(numbers(step, names));
    });
    for (let i = 0; i < STEPS; i++) find(`step-${i}`).hidden = i >= steps.length;

    const last = names.length - 2, best = bestSingle(data), mine = accuracy(data, picks), before = accuracy(data, usual);
    const listed = (layers) => layers.map((l) => names[l]).join(", ");
    const change = (value) => (percent(value) === percent(before) ? "±0.0" : (value > before ? "+" : "−") + Math.abs(percent(value) - percent(before)).toFixed(1));
    find("picks").dataset.picks = picks.join("-");
    find("picks").textContent = `Picks: ${listed(picks)}. Validation accuracy ${percent(mine)} %, ${
      String(picks) === String(usual) ? "the same picks as" : `${change(mine)} points against ${percent(before)} %`} with the default weights.`;
    const rows = [["These weights", picks], ["Default weights", usual], ["Last layer", [last]], ["Best single layer", [best]]];
    find("accuracy").replaceChildren(
      make("thead", {}, row(["Probe on", "Layers", "Accuracy, %", "Points from default"], "th")),
      make("tbody", {}, ...rows.map(([name, layers]) =>
        row([name, listed(layers), percent(accuracy(data, layers)), name === "Default weights" ? "" : change(accuracy(data, layers))]))));
    const { train, validation } = data.samples, error = percent(Math.sqrt((mine * (1 - mine)) / validation));
    find("caution").textContent = `${train} training samples, ${validation} validation samples, ${data.classes} classes. One standard error of the accuracy of these picks is ${error} points: smaller differences mean little.`;
  }

  function load(example) { // by a script element, since a page opened from a file may fetch nothing
    const script = make("script", { src: `${folder}${example}.js` });
    script.onload = () => state.example === example && show();
    script.onerror = () => { find("picks").textContent = `The data ${example}.js could not be loaded; keep the folder _static beside this page, and reload it.`; };
    document.head.append(script);
  }

  // ---- what the reader does --------------------------------------------------------------------

  function listen() {
    const complain = (text, field) => {
      find("wrong").textContent = text;
      field?.setAttribute("aria-invalid", "true");
      if (!field) root.querySelectorAll("[aria-invalid]").forEach((f) => f.removeAttribute("aria-invalid"));
    };
    const change = (update) => { complain(""); state = { ...state, ...update }; show(); };
    const on = (id, event, act) => { const field = root.querySelector(`#loes-${id}`); field.addEventListener(event, () => act(field)); };
    on("example", "change", (field) => change({ example: field.value }));
    on("criterion", "change", (field) => change({ criterion: field.value, weights: null }));
    on("k", "change", (field) => change({ k: Number(field.value) }));
    on("noise", "change", (field) => change({ noise: field.checked }));
    for (const [name, label] of Object.entries(WEIGHTS)) {
      on(name, "input", (field) => change({ weights: { ...state.weights, [name]: toWeight(Number(field.value)) } }));
      on(`${name}-number`, "input", (field) => {
        const weight = weightOf(field.value);
        if (weight !== null) change({ weights: { ...state.weights, [name]: weight } });
        else complain(`${label}: a number from 0 on is wanted, such as 0.5; it stays at ${state.weights[name]}.`, field);
      });
    }
    root.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
    root.querySelector("form").addEventListener("reset", (event) => {
      event.preventDefault();
      change({ k: START.k, noise: START.noise, weights: null });
    });
    window.addEventListener("hashchange", () => change(fromHash()));
  }

  build();
  listen();
  state = fromHash();
  show();
})();
