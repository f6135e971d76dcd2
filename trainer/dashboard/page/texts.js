// Samples to read, and greedy answers of two evaluations side by side.

function rewardBadge(reward) {
  const kind = reward >= 1 ? "good" : reward > 0 ? "open" : "bad";
  return h("span", { class: `badge ${kind}` }, `reward ${Math.round(reward * 1000) / 1000}`);
}

// Turns of a sample; one without turns has a prompt and a completion.
function turns(sample) {
  if (!sample.turns?.length)
    return [h("pre", {}, h("span", { class: "prompt" }, sample.prompt), sample.completion)];
  return sample.turns.map((turn, index) =>
    h(
      "div",
      { class: "turn" },
      h("h3", {}, `Turn ${index + 1} `, turn.reward == null ? null : rewardBadge(turn.reward)),
      turn.segments.map((segment) =>
        h("pre", { class: segment.sampled ? "" : "prompt" }, segment.text),
      ),
    ),
  );
}

function card(sample) {
  const facts = [
    sample.answer == null ? "" : `answer ${sample.answer}`,
    sample.tokens == null ? "" : `${sample.tokens} tokens`,
    sample.finishReason && sample.finishReason !== "stop" ? sample.finishReason : "",
    ...Object.entries(sample.rewards ?? {}).map(([name, value]) => `${name} ${reading(value)}`),
  ];
  const text = facts.filter(Boolean).join(" · ");
  return h(
    "article",
    {},
    h("p", {}, rewardBadge(sample.reward), " ", h("span", { class: "answer" }, text)),
    ...turns(sample),
  );
}

// The samples of one step of a run; keeps the step while the run goes on.
class Samples {
  constructor() {
    this.shown = null;
  }

  async draw(id, run) {
    const steps = run.sampleSteps;
    byId("samples").hidden = steps.length === 0;
    if (steps.length === 0) return;
    const same = this.shown?.id === id;
    if (same && this.shown.count === steps.length) return;
    await this.open(id, steps, same ? this.shown.step : steps.at(-1), 0);
  }

  async open(id, steps, step, skip) {
    const query = skip > 0 ? `step=${step}&skip=${skip}` : `step=${step}`;
    const page = await load(`v1/runs/${id}/samples?${query}`);
    this.shown = { id, step: page.step, count: steps.length };
    const go = (to) => () => guarded(this.open(id, steps, to, 0));
    const choices = [...new Set([...steps, page.step])].sort((a, b) => a - b);
    const move = (text, to) => {
      const attributes = { type: "button", "data-key": text, disabled: to == null };
      return h("button", { ...attributes, onclick: go(to) }, text);
    };
    redraw(
      byId("samples-tools"),
      choice("Step", choices.map((it) => [it, it]), page.step, (value) => go(Number(value))()),
      move("Previous step", page.previous),
      move("Next step", page.next),
    );
    const more = h("button", { type: "button", "data-key": "more" }, "More samples of this step");
    more.addEventListener("click", () => guarded(this.open(id, steps, page.step, page.rest)));
    const omitted = page.omitted > 0 ? `${page.omitted} samples are too long to be shown.` : null;
    redraw(
      byId("samples-content"),
      h("div", { class: "samples" }, page.samples.map(card)),
      page.rest == null ? null : more,
      omitted && h("p", {}, omitted),
    );
    focusScrolled(byId("samples-content"));
  }
}

// Words and spaces of a text that are added or removed: [kind, text], kind "", "del" or "ins".
const MAX_WORDS = 600;
function difference(before, after) {
  const [a, b] = [before, after].map((text) => text.match(/\s+|[^\s]+/g) ?? []);
  if (a.length > MAX_WORDS || b.length > MAX_WORDS) return [["del", before], ["ins", after]];
  const width = b.length + 1;
  const common = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1)
    for (let j = b.length - 1; j >= 0; j -= 1)
      common[i * width + j] =
        a[i] === b[j]
          ? common[(i + 1) * width + j + 1] + 1
          : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
  const parts = [];
  const add = (kind, text) => {
    if (parts.at(-1)?.[0] === kind) parts.at(-1)[1] += text;
    else parts.push([kind, text]);
  };
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      add("", a[i++]);
      j += 1;
    } else {
      const [skipOld, skipNew] = [common[(i + 1) * width + j], common[i * width + j + 1]];
      if (j >= b.length || (i < a.length && skipOld >= skipNew)) add("del", a[i++]);
      else add("ins", b[j++]);
    }
  }
  return parts;
}

// The greedy answers of two evaluations of a run.
class Answers {
  constructor() {
    this.shown = null;
  }

  async draw(id, run) {
    const steps = run.answerSteps;
    byId("answers").hidden = steps.length === 0;
    if (steps.length === 0) return;
    const same = this.shown?.id === id;
    if (same && this.shown.count === steps.length) return;
    const from = same ? this.shown.from : steps[0];
    const to = same && this.shown.to !== this.shown.newest ? this.shown.to : steps.at(-1);
    await this.open(id, steps, from, to, same ? this.shown.filter : "all");
  }

  async open(id, steps, from, to, filter) {
    const get = (step) => load(`v1/runs/${id}/answers?step=${step}`);
    const [before, after] = await Promise.all([get(from), get(to)]);
    this.shown = { id, from, to, filter, count: steps.length, newest: steps.at(-1) };
    const options = steps.map((step) => [step, step]);
    const go = (change) => {
      const next = { from, to, filter, ...change };
      guarded(this.open(id, steps, next.from, next.to, next.filter));
    };
    const filters = ["all", "changed", "better", "worse"].map((name) => [name, name]);
    redraw(
      byId("answers-tools"),
      choice("From step", options, from, (value) => go({ from: Number(value) })),
      choice("to step", options, to, (value) => go({ to: Number(value) })),
      choice("Show", filters, filter, (value) => go({ filter: value })),
    );
    this.compare(before.samples, after.samples, filter);
  }

  compare(before, after, filter) {
    const key = (sample) => `${sample.suite ?? ""}/${sample.row}`;
    const first = new Map(before.map((sample) => [key(sample), sample]));
    const pairs = after.map((sample) => [first.get(key(sample)), sample]);
    const passes = {
      all: () => true,
      changed: ([a, b]) => a && a.completion !== b.completion,
      better: ([a, b]) => a && b.reward > a.reward,
      worse: ([a, b]) => a && b.reward < a.reward,
    };
    const count = (name) => pairs.filter(passes[name]).length;
    const total = `${pairs.length} prompts: ${count("changed")} answers changed, `;
    const shown = pairs.filter(passes[filter]);
    redraw(
      byId("answers-content"),
      h("p", {}, `${total}${count("better")} better, ${count("worse")} worse.`),
      h("div", { class: "samples" }, shown.map(answerCard)),
    );
    focusScrolled(byId("answers-content"));
  }
}

// The words that differ; of several turns, the turns of the later answer and those before.
function answerTexts(before, after) {
  if (before?.turns?.length || after.turns?.length) {
    const earlier = before && h("details", {}, h("summary", {}, "Before"), ...turns(before));
    return [...turns(after), earlier];
  }
  const parts = before ? difference(before.completion, after.completion) : [["", after.completion]];
  const marked = parts.map(([kind, text]) => (kind ? h(kind, {}, text) : text));
  return [h("pre", {}, h("span", { class: "prompt" }, after.prompt), marked)];
}

function answerCard([before, after]) {
  const answer = after.answer == null ? "" : `answer ${after.answer}`;
  const expected = [after.suite, answer].filter(Boolean).join(" · ");
  const rewards = before
    ? [rewardBadge(before.reward), " then ", rewardBadge(after.reward)]
    : [rewardBadge(after.reward)];
  return h(
    "article",
    {},
    h("p", {}, ...rewards, " ", h("span", { class: "answer" }, expected)),
    ...answerTexts(before, after),
  );
}
