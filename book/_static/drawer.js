// On a phone the contents of a page lie over it: an entry that was chosen closes them.
document.addEventListener("click", (event) => {
  if (event.target.closest('a[href^="#"]')) event.target.closest("dialog[open]")?.close();
});

// A figure that is wider than a phone scrolls by keyboard too, as the theme sees to for tables.
const figures = new ResizeObserver((entries) => {
  for (const { target } of entries)
    target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
});
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".bd-article figure").forEach((figure) => figures.observe(figure));
});
