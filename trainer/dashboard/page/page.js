// State of the page: runs, which of them are drawn, and the one whose details are shown.

// Interval of reads while a run is running, in milliseconds.
const INTERVAL = 2000;
// Most runs that are drawn: the number of colors.
const MAX_DRAWN = 8;

const state = { list: [], runs: new Map(), colors: new Map(), details: null };
const samples = new Samples();
const answers = new Answers();

function problem(message) {
  byId("problem").hidden = message === null;
  byId("problem").textContent = message === null ? "" : printable(message);
}

// Shows the error of a promise.
async function guarded(promise) {
  try {
    await promise;
  } catch (error) {
    problem(error.message);
  }
}

// Names without the namespace that all runs have.
function shortName(name) {
  const [namespace] = state.list[0].name.split("/");
  const isCommon = state.list.every((entry) => entry.name.startsWith(`${namespace}/`));
  return namespace !== "" && isCommon ? name.slice(namespace.length + 1) : name;
}

function setDrawn(id, isDrawn) {
  if (!isDrawn) state.colors.delete(id);
  else if (!state.colors.has(id)) {
    const used = new Set(state.colors.values());
    const color = [...Array(MAX_DRAWN).keys()].find((it) => !used.has(it));
    if (color !== undefined) state.colors.set(id, color);
  }
}

// The number of steps of a run of epochs is not known before its data is read.
function progress(entry) {
  return entry.totalSteps ? `${entry.step} of ${entry.totalSteps}` : `${entry.step}`;
}

function drawHeader() {
  const several = state.list.length > 1;
  const first = state.list[0];
  const title = several ? `${state.list.length} runs` : first.name;
  byId("title").textContent = printable(title);
  document.title = printable(`${title} · rljob`);
  byId("cause").hidden = several || !first.cause;
  byId("cause").textContent = printable(first.cause ?? "");
  const running = state.list.filter((entry) => entry.isRunning).length;
  if (several) redraw(byId("state"), running ? `${running} running` : "");
  else redraw(byId("state"), badge(first.status), ` ${progress(first)} steps`);
}

function drawRuns() {
  byId("runs").hidden = state.list.length < 2;
  if (state.list.length < 2) return;
  const isFull = state.colors.size >= MAX_DRAWN;
  const hasCause = state.list.some((entry) => entry.cause);
  const rows = state.list.map((entry) => {
    const color = state.colors.get(entry.run);
    const isDrawn = color !== undefined;
    const run = state.runs.get(entry.run);
    const box = h("input", {
      type: "checkbox",
      "data-key": `run ${entry.run}`,
      disabled: !run || (!isDrawn && isFull),
      onchange: (event) => {
        setDrawn(entry.run, event.target.checked);
        draw();
      },
    });
    box.checked = isDrawn;
    const line = isDrawn ? swatch({ color, dash: 0 }) : null;
    const cells = run ? numbers(run) : ["–", "–", "–", "–"];
    return [
      h("label", {}, box, " ", line, shortName(entry.name)),
      badge(entry.status),
      progress(entry),
      ...cells,
      ...(hasCause ? [entry.cause ?? ""] : []),
    ];
  });
  const headers = ["Run", "Status", "Steps", "Sampled accuracy", "Greedy accuracy", "Reward",
    "Tokens per second", ...(hasCause ? ["Cause"] : [])];
  redraw(byId("runs-table"), table("Runs and their results", headers, rows));
}

// Cells of the table of runs.
function numbers(run) {
  const last = run.evaluations.at(-1);
  const measured = (value, error) => {
    if (last?.[value] == null) return "–";
    return last[value].toFixed(3) + (last[error] == null ? "" : ` ± ${last[error].toFixed(3)}`);
  };
  const reward = ends(column(run, "reward"));
  return [
    measured("sampled", "sampledStandardError"),
    measured("greedy", "greedyStandardError"),
    reward ? change(reward) : "–",
    speed(run) === null ? "–" : speed(run).toFixed(0),
  ];
}

function drawDetails() {
  const ids = [...state.runs.keys()];
  if (!ids.includes(state.details)) state.details = ids[0] ?? null;
  byId("details-choice").hidden = ids.length < 2;
  const options = ids.map((id) => [id, shortName(state.runs.get(id).name)]);
  const select = byId("details");
  if (select.options.length !== options.length)
    redraw(select, ...options.map(([value, name]) => h("option", { value }, name)));
  if (state.details === null) return;
  select.value = state.details;
  const run = state.runs.get(state.details);
  drawTiles(run);
  drawPlan(run);
  drawNow(run);
  drawMemory(run);
  drawIncidents(run);
  drawSpec(run);
  const texts = [samples.draw(state.details, run), answers.draw(state.details, run)];
  guarded(Promise.all(texts).then(drawNav));
}

// Links to the sections that are shown.
function drawNav() {
  const shown = [...document.querySelectorAll("main > section")].filter((it) => !it.hidden);
  if (byId("sections").children.length === shown.length) return;
  const link = (section) =>
    h("li", {}, h("a", { href: `#${section.id}` }, section.querySelector("h2").textContent));
  redraw(byId("sections"), shown.map(link));
}

function draw() {
  drawHeader();
  drawRuns();
  byId("curves").hidden = state.runs.size === 0;
  const drawnRuns = [...state.colors].filter(([id]) => state.runs.has(id));
  drawCurves(drawnRuns.map(([id, color]) => {
    const run = state.runs.get(id);
    return { run, color, name: shortName(run.name) };
  }));
  drawDetails();
  drawNav();
}

// Reads the runs that have changed.
async function refresh() {
  const before = state.list;
  state.list = (await load("v1/runs")).runs;
  for (const entry of state.list) {
    const known = state.runs.get(entry.run);
    const isSame = known && known.step === entry.step && known.status === entry.status;
    if (entry.status === "Unreadable" || (isSame && !entry.isRunning)) continue;
    state.runs.set(entry.run, await load(`v1/runs/${entry.run}`));
    if (!known && state.colors.size < MAX_DRAWN) setDrawn(entry.run, true);
  }
  draw();
  const moved = state.list.find((entry, index) => before[index] && entry.step > before[index].step);
  if (moved)
    byId("announcement").textContent = printable(
      `${shortName(moved.name)}: step ${progress(moved)}`,
    );
}

async function follow() {
  try {
    await refresh();
    problem(null);
  } catch (error) {
    problem(error.message);
  }
  const isLive = state.list.length === 0 || state.list.some((entry) => entry.isRunning);
  if (!embedded && isLive) setTimeout(follow, INTERVAL);
}

byId("details").addEventListener("change", (event) => {
  state.details = Number(event.target.value);
  drawDetails();
});
follow();
