// The dataflow of a step: a graph of its calls with the mean seconds that the run recorded, and a
// table of them.

const CALL_BOX = { width: 124, height: 60, left: 18, top: 40, down: 12 };
const PHASE_NAMES = {
  sync: "weight sync",
  rollouts: "rollouts",
  batch: "batch",
  training: "training",
};
const PHASE_SECONDS = {
  sync: "syncSeconds",
  rollouts: "rolloutSeconds",
  training: "trainSeconds",
};

// Mean of a metric over the steps that have it, as text.
function meanSeconds(run, name) {
  const points = name ? column(run, name) : [];
  if (points.length === 0) return null;
  return `${reading(points.reduce((sum, [, value]) => sum + value, 0) / points.length)} s`;
}

// Names of the lanes of a stage: a to z, then -27 and so on.
const laneName = (index) =>
  index < 26 ? String.fromCharCode(97 + index) : `-${index + 1}`;

// The calls with their number and place: stages are columns, calls of a stage are below each other.
function placed(plan) {
  return plan.stages.flatMap((stage, at) => {
    const calls = stage.lanes.flatMap((lane, index) =>
      lane.calls.map((call, order) => {
        const letter = stage.lanes.length > 1 ? laneName(index) : "";
        const suffix = lane.calls.length > 1 ? `.${order + 1}` : "";
        return { ...call, number: `${at + 1}${letter}${suffix}`, stage: at };
      }),
    );
    return calls.map((call, row) => ({
      ...call,
      x: at * (CALL_BOX.width + CALL_BOX.left) + 1,
      y: CALL_BOX.top + row * (CALL_BOX.height + CALL_BOX.down),
    }));
  });
}

const shortened = (text, length) =>
  text.length > length ? `${text.slice(0, length - 1)}…` : text;

function callBox(run, call) {
  const text = (y, content, name) =>
    s("text", { x: call.x + 8, y: call.y + y, class: name }, content);
  const where = [call.model, call.workers].filter(Boolean).join(" · ");
  const updates = call.updates ? `${call.updates} updates` : null;
  const facts = [meanSeconds(run, call.seconds), updates].filter(Boolean).join(" · ");
  const title = [`${call.number} ${call.name}`, call.note].filter(Boolean).join(": ");
  return s(
    "g",
    { class: `call ${call.kind}` },
    s("title", {}, title),
    s("rect", { x: call.x, y: call.y, width: CALL_BOX.width, height: CALL_BOX.height, rx: 8 }),
    text(20, shortened(call.name, 16), "name"),
    text(37, shortened(where, 21)),
    text(53, facts),
  );
}

// A line from each call to those that need its outputs; dashed where they need them for a later
// turn.
function flows(calls) {
  const line = (from, to, data, isLater) => {
    const isBack = from.x > to.x;
    const x0 = isBack ? from.x : from.x + CALL_BOX.width;
    const x1 = isBack ? to.x + CALL_BOX.width : to.x;
    const [y0, y1] = [from, to].map((it) => it.y + CALL_BOX.height / 2 + (isBack ? 12 : 0));
    const bend = (x1 - x0) / 2;
    const path = `M${x0} ${y0}C${x0 + bend} ${y0} ${x1 - bend} ${y1} ${x1} ${y1}`;
    const kind = isLater ? "flow later" : "flow";
    return s("path", { class: kind, d: path }, s("title", {}, data.join(", ")));
  };
  const common = (from, inputs = []) => inputs.filter((data) => from.outputs.includes(data));
  return calls.flatMap((to) =>
    calls.flatMap((from) => {
      const [now, later] = [common(from, to.inputs), common(from, to.laterInputs)];
      return [
        now.length > 0 ? line(from, to, now, false) : null,
        later.length > 0 ? line(from, to, later, true) : null,
      ];
    }),
  );
}

// Headings over the stages of each phase, with their mean seconds.
function phases(run, calls) {
  return Object.entries(PHASE_NAMES).map(([phase, name]) => {
    const own = calls.filter((call) => call.phase === phase);
    if (own.length === 0) return null;
    const from = Math.min(...own.map((call) => call.x));
    const to = Math.max(...own.map((call) => call.x)) + CALL_BOX.width;
    const seconds = meanSeconds(run, PHASE_SECONDS[phase]);
    return s(
      "g",
      { class: "phase" },
      s("line", { x1: from, x2: to, y1: 26, y2: 26 }),
      s("text", { x: from, y: 18 }, [name, seconds].filter(Boolean).join(" ")),
    );
  });
}

function graph(run, calls) {
  const width = Math.max(...calls.map((call) => call.x)) + CALL_BOX.width + 1;
  const height = Math.max(...calls.map((call) => call.y)) + CALL_BOX.height + 1;
  const label = "Calls of a step from left to right; the table below has the same calls.";
  return s(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    flows(calls),
    calls.map((call) => callBox(run, call)),
    phases(run, calls),
  );
}

function callRow(run, call) {
  const later = call.laterInputs ? `; later turns: ${call.laterInputs.join(", ")}` : "";
  return [
    call.number,
    call.name,
    call.model ?? "–",
    call.workers,
    call.inputs.join(", ") + later,
    call.outputs.join(", "),
    meanSeconds(run, call.seconds) ?? "–",
  ];
}

function drawPlan(run) {
  const calls = run.plan ? placed(run.plan) : [];
  byId("plan").hidden = calls.length === 0;
  if (calls.length === 0) return;
  const ahead = run.plan.stepsAhead;
  const beside =
    ahead > 0 ? ` Rollouts of up to ${ahead} later steps run beside the training of a step.` : "";
  const headers = ["Stage", "Call", "Model", "Workers", "Inputs", "Outputs", "Mean seconds"];
  const open = byId("plan-content").querySelector("details")?.open ?? false;
  redraw(
    byId("plan-content"),
    h("p", { class: "hint" }, `Means over the drawn steps, where they are recorded.${beside}`),
    scrolled("Graph of the calls", graph(run, calls)),
    h(
      "details",
      { open },
      h("summary", { "data-key": "calls" }, "Calls as a table"),
      scrolled("Table of the calls", table("Calls", headers, calls.map((it) => callRow(run, it)))),
    ),
  );
}
