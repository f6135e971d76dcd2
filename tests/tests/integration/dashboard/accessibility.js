// Checks of the page that axe-core leaves to people. Each gives a list of texts, one per problem.

// Red, green and blue of a color from 0 to 255, and alpha from 0 to 1.
function channels(color) {
  const [red, green, blue, alpha = 1] = color.match(/[\d.]+/g).map(Number);
  return { rgb: [red, green, blue], alpha };
}

// Relative luminance of WCAG.
function luminance(rgb) {
  const linear = rgb.map((it) => {
    const share = it / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

function contrast(a, b) {
  const [low, high] = [a, b].map(luminance).sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
}

// The color behind an element of the page.
function background(element) {
  for (let it = element; it; it = it.parentElement) {
    const { rgb, alpha } = channels(getComputedStyle(it).backgroundColor);
    if (alpha === 1) return rgb;
  }
  return [255, 255, 255];
}

// Paint of a part of a chart on the part or page behind it: the box of a call, or the card.
function onChart(element, property) {
  const own = channels(getComputedStyle(element)[property]).rgb;
  const box = element.closest(".call")?.querySelector("rect");
  const behind = box && box !== element ? channels(getComputedStyle(box).fill).rgb : null;
  return contrast(own, behind ?? background(element.closest("svg").parentElement));
}

function faint(selector, property, least) {
  const shown = [...document.querySelectorAll(selector)].filter((it) => it.checkVisibility());
  const ratios = shown.map((it) => [it, onChart(it, property)]);
  if (ratios.length === 0) return [`nothing matches ${selector}`];
  const problems = ratios.filter(([, ratio]) => ratio < least);
  return problems.map(([it, ratio]) => `${it.outerHTML.slice(0, 120)}: ${ratio.toFixed(2)}`);
}

// Texts of charts need 4.5:1, lines and points 3:1 (WCAG 1.4.3, 1.4.11).
const faintCharts = () => [
  ...faint("main svg text", "fill", 4.5),
  ...faint("main svg polyline", "stroke", 3),
  ...faint("main svg circle", "fill", 3),
];

// Contrast of the outline of the focused element to what is beside it.
function faintFocus() {
  const it = document.activeElement;
  const { outlineColor, outlineStyle, outlineWidth } = getComputedStyle(it);
  const ratio = contrast(channels(outlineColor).rgb, background(it.parentElement));
  const isClear = outlineStyle === "solid" && parseFloat(outlineWidth) >= 2 && ratio >= 3;
  return isClear ? [] : [`${it.outerHTML.slice(0, 120)}: ${outlineStyle} ${ratio.toFixed(2)}`];
}

// Elements that are announced when they change: live regions, and those that are so by their role.
function announced() {
  const roles = "[role=status], [role=alert], [role=log]";
  const all = document.querySelectorAll(`[aria-live], output, ${roles}`);
  const loud = [...all].filter((it) => it.getAttribute("aria-live") !== "off");
  return loud.map((it) => it.id);
}

// Problems that axe-core finds, or that it leaves to people except for texts of charts.
async function axeProblems() {
  const values = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
  const found = await axe.run(document, { runOnly: { type: "tag", values } });
  const isOfChart = (rule, node) =>
    rule.id === "color-contrast" && document.querySelector(node.target[0])?.closest("svg");
  const text = (rule, node) => `${rule.id}: ${node.html.slice(0, 160)}: ${node.failureSummary}`;
  const problems = (rules, skips) =>
    rules.flatMap((rule) =>
      rule.nodes.filter((it) => !skips(rule, it)).map((it) => text(rule, it)),
    );
  return [...problems(found.violations, () => false), ...problems(found.incomplete, isOfChart)];
}
