// The charts of the page, headline numbers, and the table that compares runs.

const one = (name) => (run) => [["", column(run, name)]];
const several = (...pairs) => (run) => pairs.map(([text, name]) => [text, column(run, name)]);

// A metric of training and of validation.
const both = (name) => (run) => [
  ["training", column(run, name)],
  ["validation", evaluations(run, (it) => it[name])],
];

// Lines that are not 0 everywhere.
const positive = (lines) => lines.filter((line) => line[1].some((point) => point[1] > 0));

// Charts: `lines` gives [name, points] of a run; empty ones are not drawn.
const CHARTS = [
  {
    title: "Evaluation accuracy",
    unit: "mean reward of held-out prompts",
    bounds: [0, 1],
    lines: (run) =>
      suites(run).flatMap((suite) => [
        [`${suite} sampled`.trim(), evaluations(run, (it) => it.sampled, suite)],
        [`${suite} greedy`.trim(), evaluations(run, (it) => it.greedy, suite)],
      ]),
  },
  { title: "Reward", unit: "mean of the step's samples", bounds: [0, 1], lines: one("reward") },
  {
    title: "Reward components",
    unit: "mean of the step's samples, before weights",
    lines: (run) => rewards(run).map((name) => [name.slice(7), column(run, name)]),
  },
  {
    title: "Mixture",
    unit: "share of the step's prompts",
    bounds: [0, 1],
    lines: (run) =>
      Object.keys(run.columns)
        .filter((name) => name.startsWith("mixture/"))
        .map((name) => [name.slice(8), column(run, name)]),
  },
  { title: "Loss", unit: "per trainable token or pair", lines: both("loss") },
  {
    title: "Pair accuracy",
    unit: "share of pairs in the right order",
    bounds: [0, 1],
    lines: both("pairAccuracy"),
  },
  { title: "Margin", unit: "reward of chosen − rejected", lines: both("pairMargin") },
  { title: "Gradient norm", unit: "L2, before clipping", lines: one("gradientNorm") },
  { title: "Entropy", unit: "nats per token", lines: one("entropy") },
  { title: "KL", unit: "sampler to learner, k3 per token", log: true, lines: one("kl") },
  {
    title: "Engine–learner mismatch",
    unit: "|Δ log-probability| before the update, nats",
    log: true,
    lines: several(["mean", "mismatchMean"], ["max", "mismatchMax"]),
  },
  { title: "Clip fraction", unit: "share of trainable tokens", lines: one("clipFraction") },
  { title: "Completion length", unit: "mean tokens", lines: one("completionTokens") },
  {
    title: "Speed",
    unit: "tokens per second, rollouts and evaluations included",
    lines: one("tokensPerSecond"),
  },
  {
    title: "Time by phase",
    unit: "seconds per step; rollouts may overlap training",
    lines: several(
      ["rollouts", "rolloutSeconds"],
      ["training", "trainSeconds"],
      ["weight sync", "syncSeconds"],
    ),
  },
  {
    title: "Training by call",
    unit: "seconds per step",
    lines: several(
      ["reference", "referenceSeconds"],
      ["proximal", "proximalSeconds"],
      ["values", "valueSeconds"],
      ["advantages", "advantageSeconds"],
      ["policy", "policySeconds"],
      ["critic", "criticSeconds"],
    ),
  },
  {
    title: "Learners without work",
    unit: "seconds per step in which samples were missing",
    lines: (run) => positive(several(["", "waitSeconds"])(run)),
  },
  {
    title: "Staleness",
    unit: "steps between sampling and training weights",
    lines: several(["mean", "stalenessMean"], ["max", "stalenessMax"]),
  },
  {
    title: "Left out",
    unit: "per step",
    lines: (run) =>
      positive(
        several(
          ["dropped prompt groups", "droppedGroups"],
          ["skipped rows", "skippedRows"],
          ["stale samples", "staleSamples"],
          ["rejected samples", "rejectedSamples"],
        )(run),
      ),
  },
  {
    title: "Groups with equal rewards",
    unit: "share of the prompt groups of a step",
    lines: one("equalRewardGroups"),
  },
  { title: "GPU use", unit: "share of the bf16 operations (MFU)", lines: one("mfu") },
  {
    title: "Peak memory",
    unit: "GiB of a learner's GPU",
    lines: (run) => [["", column(run, "peakMemoryBytes").map(([x, y]) => [x, y / 2 ** 30])]],
  },
  { title: "Value loss", unit: "critic, per trainable token", lines: one("valueLoss") },
  { title: "Explained variance", unit: "of the critic", lines: one("explainedVariance") },
];

const charts = CHARTS.map((spec) => new Chart(spec));

// Draws the runs. One run has a color for each line; several have a color each. Lines of a run
// differ by dashes too.
function drawCurves(runs) {
  const container = byId("charts");
  if (!container.firstChild) container.append(...charts.map((chart) => chart.element));
  CHARTS.forEach((spec, index) => {
    const lines = runs.flatMap(({ run, color, name }) =>
      spec.lines(run).map(([text, points], line) => ({
        name: runs.length > 1 ? [name, text].filter(Boolean).join(" ") : text || spec.title,
        color: runs.length > 1 ? color : line % 8,
        dash: line % 4,
        points,
      })),
    );
    charts[index].update(lines);
  });
}

// Mean of the first and of the last tenth of the points, at most ten.
function ends(points) {
  if (points.length === 0) return null;
  const count = Math.min(Math.max(Math.floor(points.length / 10), 1), 10);
  const mean = (part) => part.reduce((sum, point) => sum + point[1], 0) / part.length;
  return [mean(points.slice(0, count)), mean(points.slice(-count))];
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : null;
}

const speed = (run) => median(column(run, "tokensPerSecond").map((point) => point[1]));
const change = ([first, last]) => `${first.toFixed(3)} → ${last.toFixed(3)}`;

// Headline numbers of a run: [name, value, detail].
function headlines(run) {
  const found = [];
  const last = run.evaluations.at(-1);
  const measured = (name, value, error, suite = "") => {
    const known = (number) => number !== null && number !== undefined;
    const own = ofSuite(run, suite);
    const [first, last] = [own[0], own.at(-1)];
    if (!first || !known(first[value]) || !known(last[value])) return;
    const errors = [first[error], last[error]];
    const detail = errors.every(known)
      ? `± ${errors[0].toFixed(3)} → ± ${errors[1].toFixed(3)} standard error`
      : "";
    found.push([name, change([first[value], last[value]]), detail]);
  };
  for (const suite of suites(run)) {
    const name = suite || "Accuracy";
    measured(`${name}, sampled`, "sampled", "sampledStandardError", suite);
    measured(`${name}, greedy`, "greedy", "greedyStandardError", suite);
  }
  measured("Validation loss", "loss", "");
  measured("Pair accuracy", "pairAccuracy", "");
  if (last?.rejected > 0)
    found.push(["Rejected in the last evaluation", `${last.rejected} completions`, ""]);
  const reward = ends(column(run, "reward"));
  const loss = ends(column(run, "loss"));
  if (reward) found.push(["Reward", change(reward), ""]);
  else if (loss) found.push(["Loss", change(loss), ""]);
  if (speed(run) !== null) found.push(["Speed, median", `${speed(run).toFixed(0)} tok/s`, ""]);
  const attempt = run.columns.attempt.at(-1);
  if (attempt > 0) found.push(["Attempts", attempt + 1, ""]);
  return found;
}

function drawTiles(run) {
  const tile = ([name, value, detail]) =>
    h("div", {}, h("span", {}, name), h("strong", {}, value), detail && h("small", {}, detail));
  byId("tiles").replaceChildren(...headlines(run).map(tile));
}
