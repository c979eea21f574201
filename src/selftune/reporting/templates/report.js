// Every plot has its data in the element beside it. All places are laid out by now, so that each plot fits its own.
(() => {
  const plots = [...document.querySelectorAll(".plot")];
  for (const plot of plots) {
    const figure = JSON.parse(plot.nextElementSibling.textContent);
    // When the window changes Plotly forgets the figure's height and takes that of its place.
    plot.style.height = `${figure.layout.height}px`;
    Plotly.newPlot(plot, figure);
  }
  // Paper has another width than the window: draw to it, and back. What is folded is unfolded.
  const fit = (paper) => plots.forEach((plot) => {
    Plotly.relayout(plot, paper ? { width: plot.clientWidth, autosize: false } : { width: null, autosize: true });
  });
  window.matchMedia("print").addEventListener("change", (change) => fit(change.matches));
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((folded) => { folded.open = true; });
  });
})();
