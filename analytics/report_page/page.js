"use strict";
// Draws the plots in the reader's colours, and sorts and filters tables. Names reach the page as text, never as HTML.

const plots = JSON.parse(document.getElementById("data").textContent).plots;
const narrow = matchMedia("(max-width: 40rem)");
const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const element = (key) => document.querySelector(`[data-plot="${key}"]`);

function paint(trace) {
  const own = colour("line-" + trace.meta.colour);
  return trace.type === "bar"
    ? { marker: { color: own } }
    : { line: { ...trace.line, color: own }, marker: { ...trace.marker, color: own } };
}

function axis(given) {
  const lines = { gridcolor: colour("grid"), linecolor: colour("border"), zerolinecolor: colour("border") };
  return { automargin: true, ...given, ...(narrow.matches && { fixedrange: true }), ...lines, title: { standoff: 8, ...given.title } };
}

function layout(plot) {
  const given = plot.figure.layout;
  return {
    ...given,
    xaxis: { nticks: narrow.matches ? 4 : 8, ...axis(given.xaxis) },
    yaxis: { nticks: 6, ...axis(given.yaxis) },
    font: { family: "system-ui, sans-serif", size: 12, color: colour("text") },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("muted"), activecolor: colour("text") },
    hoverlabel: { bgcolor: colour("panel"), bordercolor: colour("border"), font: { color: colour("text") }, namelength: 40 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 50, r: 12, t: narrow.matches ? 8 : 28, b: 40 },
    // Names have a legend of their own below the plot, which wraps and can be read on a phone.
    showlegend: false,
    // A finger that moves over a plot scrolls the page.
    dragmode: narrow.matches ? false : "zoom",
  };
}

function options() {
  return {
    responsive: true,
    displaylogo: false,
    displayModeBar: narrow.matches ? false : "hover",
    // Named one by one: the usual set has a button that sends the data to a service on the network.
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    plotlyServerURL: "",
  };
}

function swatch(trace) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("width", "24");
  svg.setAttribute("height", "8");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const dash = { solid: "none", dash: "7 4", dot: "2 3" }[trace.line.dash];
  line.setAttribute("d", "M0 4H24");
  line.style.cssText = `stroke: var(--line-${trace.meta.colour}); stroke-width: 3; stroke-dasharray: ${dash}; fill: none`;
  svg.append(line);
  return svg;
}

function legendItem(plot, drawn, number) {
  const [label, name] = plot.legend[number];
  const button = document.createElement("button");
  const text = document.createElement("span");
  text.textContent = label;
  button.type = "button";
  button.title = name;
  button.setAttribute("aria-pressed", String(drawn.data[number].visible === true));
  button.append(swatch(plot.figure.data[number]), text);
  button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    Plotly.restyle(drawn, { visible: shown ? true : "legendonly" }, [number]);
  });
  const item = document.createElement("li");
  item.append(button);
  return item;
}

function list(items) {
  const all = document.createElement("ul");
  all.className = "legend";
  all.append(...items);
  return all;
}

// Lines that are not drawn at first wait behind a fold.
function legend(plot, drawn) {
  const items = plot.legend.map((_, number) => legendItem(plot, drawn, number));
  const shown = plot.figure.data.filter((trace) => trace.visible === true).length;
  const parts = [list(items.slice(0, shown))];
  if (items.length > shown) {
    const rest = document.createElement("details");
    rest.className = "rest";
    const head = document.createElement("summary");
    head.textContent = `${items.length - shown} more`;
    rest.append(head, list(items.slice(shown)));
    parts.push(rest);
  }
  return parts;
}

const isTime = (plot) => plot.figure.layout.xaxis.type === "date";
let following = false;

// Zooming into one plot over time moves all others to the same time.
function follow(plot, change) {
  if (following || !isTime(plot)) return;
  const range = change["xaxis.range"] || (change["xaxis.range[0]"] && [change["xaxis.range[0]"], change["xaxis.range[1]"]]);
  if (!range && !change["xaxis.autorange"]) return;
  following = true;
  const others = plots.filter((other) => other !== plot && isTime(other) && element(other.key).data);
  const update = (other) => ({ "xaxis.range": (range || other.figure.layout.xaxis.range).slice() });
  Promise.all(others.map((other) => Plotly.relayout(element(other.key), update(other)))).finally(() => { following = false; });
}

async function draw(plot) {
  const place = element(plot.key);
  const data = plot.figure.data.map((trace) => ({ ...trace, ...paint(trace) }));
  const drawn = await Plotly.newPlot(place, data, layout(plot), options());
  if (plot.legend.length) place.after(...legend(plot, drawn));
  drawn.on("plotly_relayout", (change) => follow(plot, change));
}

function repaint() {
  for (const plot of plots) {
    const place = element(plot.key);
    if (!place.data) continue;
    const data = place.data.map((trace) => ({ ...trace, ...paint(trace) }));
    Plotly.react(place, data, layout(plot), options());
  }
}

// One plot at a time, so that the page can be read and scrolled meanwhile.
async function drawAll() {
  for (const plot of plots) {
    await draw(plot);
    await new Promise((next) => setTimeout(next));
  }
  document.documentElement.dataset.drawn = String(plots.length);
}

function sort(table, column, header) {
  const downward = header.getAttribute("aria-sort") !== "descending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", downward ? "descending" : "ascending");
  const isNumber = header.classList.contains("n");
  const value = (row) => {
    const text = row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    return isNumber ? (text === "" ? null : Number(text)) : text;
  };
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [value(row), row]);
  // What is unknown stays at the end, whichever way the rest is sorted.
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    const order = isNumber ? a - b : a.localeCompare(b, "en", { numeric: true });
    return downward ? -order : order;
  });
  body.append(...rows.map(([, row]) => row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    header.querySelector("button").addEventListener("click", () => sort(table, column, header));
  });
}

for (const input of document.querySelectorAll("[data-filters]")) {
  const table = document.getElementById(input.dataset.filters);
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
}

dark.addEventListener("change", repaint);
narrow.addEventListener("change", repaint);
drawAll();
