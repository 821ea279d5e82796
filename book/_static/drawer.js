// On a phone the contents of a page lie over it: an entry that was chosen closes them.
document.addEventListener("click", (event) => {
  if (event.target.closest('a[href^="#"]')) event.target.closest("dialog[open]")?.close();
});
