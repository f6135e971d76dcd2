// Engines, learners, memory, incidents and the spec of a run.

// Names and values.
function list(facts) {
  const fact = ([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  return h("dl", {}, facts.map(fact));
}

function drawNow(run) {
  const report = run.isRunning ? run.coordinator : null;
  byId("now").hidden = !report;
  if (!report) return;
  const further = [report.evaluationEngines, report.rewardEngines, report.teacherEngines];
  const all = [report.engines, ...further.map((engines) => engines ?? [])];
  const engines = all.flat().map((engine) => [
    engine.name,
    engine.state,
    engine.version ?? "–",
    engine.silentSeconds == null ? "responds" : `silent for ${engine.silentSeconds} s`,
    engine.unsuitable ?? "",
  ]);
  const learners = report.supervisors.map((it) => [
    it.name,
    it.alive ? "reports" : "silent",
    String(it.learners),
  ]);
  const facts = [
    ["Phase", report.phase],
    ["Learners", report.activity ?? "–"],
    ["Attempt", String(report.attempt)],
    ["Counted restarts", String(report.restarts)],
    ["Newest checkpoint", report.checkpoint ?? "–"],
    ["Requests at engines", String(report.requests?.running ?? "–")],
    ["Requests in the queue", String(report.requests?.queued ?? "–")],
  ];
  if (report.pendingEvaluations != null) {
    facts.push(["Evaluations that wait or run", String(report.pendingEvaluations)]);
  }
  const headers = ["Engine", "State", "Weights", "Responses", "Problem"];
  redraw(
    byId("now-content"),
    list(facts),
    engines.length
      ? scrolled("Engines", table("Engines", headers, engines))
      : h("p", {}, "There is no engine."),
    scrolled("Trainers", table("Trainers", ["Trainer", "State", "Learners"], learners)),
  );
}

const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;

// The memory plan of the learners, beside what they have used.
function drawMemory(run) {
  const plan = run.memory;
  byId("memory").hidden = !plan;
  if (!plan) return;
  const peak = column(run, "peakMemoryBytes").at(-1);
  const facts = [
    ["Planned", gib(plan.totalBytes)],
    ["Usable on each GPU", plan.usableBytes == null ? "–" : gib(plan.usableBytes)],
    ["Used at most", peak ? gib(peak[1]) : "–"],
    ["Micro-batches", plan.fits ? "fit" : "may not fit"],
    ["Sharding", plan.sharding],
    ["Layers computed again", `${plan.recomputedLayers} of ${plan.layers}`],
    ["Norms computed again", `in ${plan.selectiveLayers ?? 0} layers`],
  ];
  const parts = plan.parts.map((part) => [
    part.name,
    gib(part.bytes),
    `${((100 * part.bytes) / plan.totalBytes).toFixed(1)} %`,
  ]);
  const planned = table("Memory plan", ["Part", "Planned", "Share"], parts);
  redraw(byId("memory-content"), list(facts), scrolled("Memory plan", planned));
}

// Time of an incident of a pod, as the status has it.
const utc = (time) => `${time.slice(0, 19).replace("T", " ")} UTC`;

// Incidents that the status of the RLJob, the records and the report show: [text, step, time].
function incidents(run) {
  const found = (run.incidents ?? []).map((it) => [
    `${it.reason}: ${it.message}`,
    null,
    it.time ? utc(it.time) : null,
  ]);
  for (const it of run.changes ?? [])
    found.push([`The run continued with changes that were accepted: ${it.fields.join(", ")}.`, it.step]);
  const attempts = column(run, "attempt");
  attempts.forEach(([step, attempt], index) => {
    const before = index > 0 ? attempts[index - 1][1] : 0;
    if (attempt > before)
      found.push([`The learners restarted as attempt ${attempt + 1} up to this step.`, step]);
  });
  for (const [step, count] of column(run, "skipped"))
    if (count > 0)
      found.push([`${count} updates were skipped: loss or gradient not finite.`, step]);
  for (const it of run.evaluations)
    if (it.rejected > 0) found.push([`${it.rejected} completions were rejected.`, it.step]);
  const report = run.coordinator;
  const failure = report?.lastFailure;
  if (failure) found.push([`${failure.reason}: ${failure.message}`, null]);
  const outage = report?.rewardOutage;
  if (outage)
    found.push([`${outage.reward} is down since ${outage.seconds} s: ${outage.cause}`, null]);
  if (report?.journalFailure) found.push([`The journal: ${report.journalFailure}`, null]);
  return found;
}

function drawIncidents(run) {
  const found = incidents(run);
  byId("incidents").hidden = found.length === 0;
  // The newest ones.
  const shown = found.slice(-100).reverse();
  const item = ([text, step, time]) => {
    const when = step === null ? time : `Step ${step}`;
    return h("li", {}, when ? h("b", {}, `${when} `) : null, text);
  };
  byId("incidents-content").replaceChildren(...shown.map(item));
}

function drawSpec(run) {
  byId("spec").hidden = false;
  byId("spec-content").textContent = printable(run.spec);
}
