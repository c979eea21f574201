// Draw the formulas of a page. `document$` tells of each page that is shown.
document$.subscribe(({ body }) => {
  for (const element of body.querySelectorAll(".arithmatex")) {
    const text = element.textContent.trim();
    if (!/^\\[([]/.test(text)) continue; // already drawn
    katex.render(text.slice(2, -2), element, { displayMode: text.startsWith("\\["), throwOnError: false });
  }
});
