// Line charts over steps, as SVG, with a table of the same numbers.

const BOX = { width: 420, height: 200, left: 52, right: 10, top: 10, bottom: 24 };
const PLOT = {
  width: BOX.width - BOX.left - BOX.right,
  height: BOX.height - BOX.top - BOX.bottom,
};
// Most rows of a table.
const ROWS = 50;

// About `count` round numbers from `low` to `high`: 1, 2 or 5 times a power of ten apart.
function roundNumbers(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((it) => it >= rough * 0.999);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index += 1)
    ticks.push(index * step);
  return ticks;
}

// Axis of values: ends, position from 0 to 1, ticks. Logarithmic ones end at powers of ten.
function axis(low, high, { log, bounds }) {
  if (log) {
    const first = Math.floor(Math.log10(low));
    const last = Math.max(Math.ceil(Math.log10(high)), first + 1);
    const stride = Math.ceil((last - first) / 5);
    const ticks = [];
    for (let power = first; power <= last; power += stride) ticks.push(10 ** power);
    return { share: (value) => (Math.log10(value) - first) / (last - first), ticks };
  }
  let floor = bounds ? Math.min(bounds[0], low) : low;
  let ceiling = bounds ? Math.max(bounds[1], high) : high;
  if (!bounds) {
    // Padding that does not cross zero unless the data do.
    const padding = high > low ? (high - low) * 0.08 : Math.max(Math.abs(low), 1e-6) * 0.5;
    floor = low >= 0 ? Math.max(low - padding, 0) : low - padding;
    ceiling = high <= 0 ? Math.min(high + padding, 0) : high + padding;
  }
  if (ceiling <= floor) ceiling = floor + 1;
  const share = (value) => (value - floor) / (ceiling - floor);
  return { share, ticks: roundNumbers(floor, ceiling, 5) };
}

function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return [low, high];
}

// All charts of the page, which show the same step under the cursor.
const drawn = [];
function moveCursor(step) {
  for (const chart of drawn) chart.show(step);
}

class Chart {
  // `spec`: title, unit, optional bounds [low, high], optional log.
  constructor(spec) {
    this.spec = spec;
    this.lines = [];
    // The plot says its value, and values of a running run change all the time.
    this.output = h("output", { "aria-live": "off" });
    this.svg = s("svg", { viewBox: `0 0 ${BOX.width} ${BOX.height}`, "aria-hidden": "true" });
    const role = { class: "plot", role: "slider", tabindex: "0", "aria-label": spec.title };
    this.plot = h("div", role);
    this.plot.append(this.svg);
    this.plot.addEventListener("pointermove", (event) => moveCursor(this.stepAt(event.clientX)));
    this.plot.addEventListener("pointerleave", () => moveCursor(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("blur", () => moveCursor(null));
    this.legend = h("p", { class: "legend" });
    this.table = h("details", { ontoggle: () => this.fillTable() });
    const ofChart = h("span", { class: "hidden" }, ` of ${spec.title}`);
    this.rows = h("div");
    this.table.append(h("summary", {}, "Table", ofChart), this.rows);
    this.element = h(
      "figure",
      { "aria-label": spec.title },
      h("figcaption", {}, h("h3", {}, spec.title), this.output, h("small", {}, spec.unit)),
      this.plot,
      this.legend,
      this.table,
    );
    drawn.push(this);
  }

  // Lines: name, color, dash, points [step, value] by step.
  update(lines) {
    const fits = (point) => Number.isFinite(point[1]) && (!this.spec.log || point[1] > 0);
    this.lines = lines
      .map((line) => ({ ...line, points: line.points.filter(fits) }))
      .filter((line) => line.points.length > 0);
    this.element.hidden = this.lines.length === 0;
    if (this.element.hidden) return;
    const points = this.lines.flatMap((line) => line.points);
    this.last = Math.max(1, extent(points.map((point) => point[0]))[1]);
    this.axis = axis(...extent(points.map((point) => point[1])), this.spec);
    this.draw();
    this.show(null);
    this.fillTable();
  }

  x(step) {
    return BOX.left + (step / this.last) * PLOT.width;
  }

  y(value) {
    return BOX.top + (1 - this.axis.share(value)) * PLOT.height;
  }

  draw() {
    const marks = [];
    const text = (x, y, anchor, content) =>
      s("text", { class: "tick", x, y, "text-anchor": anchor }, content);
    for (const value of this.axis.ticks) {
      const y = this.y(value);
      const ends = { x1: BOX.left, x2: BOX.width - BOX.right, y1: y, y2: y };
      marks.push(s("line", { class: "grid", ...ends }));
      marks.push(text(BOX.left - 6, y + 3.5, "end", label(value)));
    }
    for (const step of roundNumbers(0, this.last, 6).filter(Number.isInteger))
      marks.push(text(this.x(step), BOX.height - 6, "middle", label(step)));
    marks.push(text(BOX.left - 10, BOX.height - 6, "end", "step"));
    for (const line of this.lines) marks.push(...this.line(line));
    this.cursor = s("line", { class: "cursor", y1: BOX.top, y2: BOX.height - BOX.bottom });
    this.svg.replaceChildren(...marks, this.cursor);
  }

  line({ color, dash, points }) {
    const at = ([step, value]) => [this.x(step).toFixed(1), this.y(value).toFixed(1)];
    const path = points.map((point) => at(point).join(",")).join(" ");
    const marks = [s("polyline", { class: `line c${color} d${dash}`, points: path })];
    if (points.length <= 24) {
      for (const [cx, cy] of points.map(at))
        marks.push(s("circle", { class: `dot c${color}`, cx, cy, r: 2.4 }));
    }
    return marks;
  }

  stepAt(clientX) {
    const box = this.svg.getBoundingClientRect();
    const x = ((clientX - box.left) / box.width) * BOX.width;
    return ((x - BOX.left) / PLOT.width) * this.last;
  }

  key(event) {
    const points = this.lines[0]?.points ?? [];
    const index = points.findIndex((point) => point[0] === this.step);
    const moves = {
      ArrowLeft: index < 0 ? points.length - 1 : index - 1,
      ArrowRight: index < 0 ? 0 : index + 1,
      Home: 0,
      End: points.length - 1,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const target = Math.min(Math.max(moves[event.key], 0), points.length - 1);
    moveCursor(points[target][0]);
  }

  // Shows the values next to a step, or the last ones.
  show(step) {
    if (this.lines.length === 0) return;
    const nearest = ({ points }) =>
      points.reduce((best, it) => (Math.abs(it[0] - step) < Math.abs(best[0] - step) ? it : best));
    const shown = this.lines.map((line) => (step === null ? line.points.at(-1) : nearest(line)));
    this.step = step === null ? null : shown[0][0];
    this.cursor.classList.toggle("shown", step !== null);
    if (step !== null) {
      this.cursor.setAttribute("x1", this.x(shown[0][0]));
      this.cursor.setAttribute("x2", this.x(shown[0][0]));
    }
    const values = shown.map((point) => reading(point[1]));
    const at = step === null ? "" : `step ${shown[0][0]}`;
    const single = this.lines.length === 1;
    this.output.textContent = single ? [at, values[0]].filter(Boolean).join(": ") : at;
    const keys = this.lines.map((line, index) =>
      h("span", { class: "key" }, swatch(line), line.name, " ", h("b", {}, values[index])),
    );
    this.legend.replaceChildren(...(single && !this.lines[0].isNamed ? [] : keys));
    const spoken = this.lines.map((line, index) => (single ? "" : `${line.name} `) + values[index]);
    this.plot.setAttribute("aria-valuemin", this.lines[0].points[0][0]);
    this.plot.setAttribute("aria-valuemax", this.last);
    this.plot.setAttribute("aria-valuenow", shown[0][0]);
    this.plot.setAttribute("aria-valuetext", `step ${shown[0][0]}: ${spoken.join(", ")}`);
  }

  // The table of an open chart.
  fillTable() {
    if (!this.table.open) return;
    const steps = [...new Set(this.lines.flatMap((line) => line.points.map((it) => it[0])))];
    steps.sort((a, b) => a - b);
    const stride = Math.ceil(steps.length / ROWS);
    const shown = steps.filter((_, index) => index % stride === 0 || index === steps.length - 1);
    const values = this.lines.map((line) => new Map(line.points));
    const rows = shown.map((step) => [step, ...values.map((line) => reading(line.get(step)))]);
    const names = this.lines.map((line) => line.name);
    const title = `${this.spec.title} by step`;
    redraw(this.rows, scrolled(title, table(title, ["step", ...names], rows)));
  }
}

// The line of a legend.
function swatch({ color, dash }) {
  const line = s("line", { class: `line c${color} d${dash}`, x1: 1, x2: 23, y1: 4, y2: 4 });
  return s("svg", { class: "swatch", viewBox: "0 0 24 8", "aria-hidden": "true" }, line);
}
