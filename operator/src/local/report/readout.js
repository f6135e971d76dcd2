// Shows the values under the pointer in a chart's caption.
for (const svg of document.querySelectorAll("svg[data-points]")) {
  const [last, left, right] = [svg.dataset.last, svg.dataset.left, svg.dataset.right].map(Number);
  const names = JSON.parse(svg.dataset.names);
  const series = JSON.parse(svg.dataset.points);
  const output = svg.closest("figure").querySelector("output");
  const cursor = svg.querySelector(".cursor");
  const rest = output.textContent;
  const show = (value) => {
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size < 1e-3 || size >= 1e6) return value.toExponential(1).replace("e+", "e");
    return value.toFixed(size >= 1e3 ? 0 : size >= 10 ? 2 : 4);
  };
  const prefix = (index) => (names.length > 1 ? `${names[index]} ` : "");
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const step = ((x - left) / (right - left)) * last;
    const distance = (point) => Math.abs(point[0] - step);
    const near = series.map((points) =>
      points.reduce((best, point) => (distance(point) < distance(best) ? point : best)),
    );
    const at = left + (near[0][0] / last) * (right - left);
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    cursor.style.visibility = "visible";
    const values = near.map((point, index) => prefix(index) + show(point[1]));
    output.textContent = `step ${near[0][0]}: ${values.join(" · ")}`;
  });
  svg.addEventListener("pointerleave", () => {
    cursor.style.visibility = "hidden";
    output.textContent = rest;
  });
}
