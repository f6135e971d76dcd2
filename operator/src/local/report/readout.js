// Shows the values under the pointer in a chart's caption.
for (const svg of document.querySelectorAll("svg[data-points]")) {
  const { first, last, left, right } = Object.fromEntries(Object.entries(svg.dataset).map(([key, value]) => [key, Number(value)]));
  const series = JSON.parse(svg.dataset.points);
  const output = svg.closest("figure").querySelector("output");
  const cursor = svg.querySelector(".cursor");
  const rest = output.textContent;
  const show = (value) => (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5) ? value.toExponential(1) : value.toFixed(4));
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const step = first + ((x - left) / (right - left)) * (last - first);
    const near = series.map((points) => points.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best)));
    const at = left + ((near[0][0] - first) / (last - first)) * (right - left);
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    cursor.style.visibility = "visible";
    output.textContent = `step ${near[0][0]}: ${near.map((point) => show(point[1])).join(" · ")}`;
  });
  svg.addEventListener("pointerleave", () => {
    cursor.style.visibility = "hidden";
    output.textContent = rest;
  });
}
