// The look of charts, and when they are drawn: each once, then again while it is in view; one at a time, so that the page stays
// responsive.

const COLOURS = ["accent", "second", "third", "completed", "expired", "init", "filtered", "aborted"];
const CONFIG = { displayModeBar: false, responsive: true, scrollZoom: false, showTips: false };

const wanted = new Map(); // what each chart is to show
const visible = new Set();
const drawn = new Set(); // charts that show something, as the theme is now
const due = new Set();
const known = new Map(); // resolved colours

const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);

/** The colour that the style sheet calls so, as it is now; with an opacity. */
export function colour(name, opacity = 1) {
  if (!known.has(name)) {
    probe.style.color = `var(--${name})`;
    known.set(name, getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).join(", "));
  }
  return `rgba(${known.get(name)}, ${opacity})`;
}

export const nth = (index, opacity) => colour(COLOURS[index % COLOURS.length], opacity);

/** Text for a chart, which reads some tags. */
export const label = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

/** Say what a chart is to show: a function, asked when it is drawn; `empty` is said when it gives no traces. */
export function show(id, figure, empty) {
  wanted.set(id, { figure, empty });
  if (!watched.has(id)) {
    watched.add(id);
    watcher.observe(document.getElementById(id));
  }
  redraw(id);
}

const watched = new Set();
const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) {
      visible.add(target.id);
      redraw(target.id);
    } else visible.delete(target.id);
  }
}, { rootMargin: "200px" });

const redrawAll = () => [...wanted.keys()].forEach(redraw);
document.addEventListener("visibilitychange", redrawAll);
document.addEventListener("theme", () => {
  known.clear();
  drawn.clear();
  redrawAll();
});

/** Draw a chart soon, unless it was drawn and is out of view; several requests make one drawing. */
function redraw(id) {
  if (document.hidden || (drawn.has(id) && !visible.has(id))) return;
  if (!due.size) setTimeout(drawNext);
  due.add(id);
}

function drawNext() {
  const [id] = due;
  draw(id);
  due.delete(id);
  if (due.size) setTimeout(drawNext);
}

function draw(id) {
  const { figure, empty } = wanted.get(id);
  const { traces, ...layout } = figure();
  const holder = document.getElementById(id);
  if (!traces.length) {
    if (holder.dataset.empty === undefined) Plotly.purge(holder);
    holder.dataset.empty = empty;
    return;
  }
  drawn.add(id);
  delete holder.dataset.empty;
  Plotly.react(holder, traces, styled(layout), CONFIG);
}

function styled({ xaxis = {}, yaxis = {}, yaxis2, ...layout }) {
  const axis = {
    gridcolor: colour("line"), linecolor: colour("line"), zeroline: false, tickfont: { size: 11, color: colour("muted") },
    title: { font: { size: 11, color: colour("muted") }, standoff: 8 }, fixedrange: true, automargin: true,
  };
  const merged = (own) => ({ ...axis, ...own, title: { ...axis.title, ...own.title } });
  return {
    margin: { l: 8, r: 10, t: 8, b: 8 }, paper_bgcolor: "transparent", plot_bgcolor: "transparent", dragmode: false,
    font: { family: "system-ui, sans-serif", size: 12, color: colour("ink") },
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink"), size: 12 } },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11, color: colour("muted") }, traceorder: "normal", itemclick: false, itemdoubleclick: false },
    showlegend: true, bargap: 0.25, bargroupgap: 0.08, ...layout,
    xaxis: merged({ showgrid: false, ...xaxis }), yaxis: merged({ rangemode: "tozero", nticks: 5, ...yaxis }),
    ...(yaxis2 ? { yaxis2: merged(yaxis2) } : {}),
  };
}
