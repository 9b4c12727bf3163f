"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = matchMedia("screen and (prefers-color-scheme: dark)");
const touch = matchMedia("(pointer: coarse)").matches;

const narrow = innerWidth < 600;
const config = {
  responsive: true, displaylogo: false, showSendToCloud: false,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  displayModeBar: narrow ? false : "hover",  // on a phone it would cover the legend
};

function theme() {
  const style = getComputedStyle(document.documentElement);
  const [ink, rule, page] = ["--ink", "--rule", "--page"].map(name => style.getPropertyValue(name).trim());
  const look = { "font.color": ink, "hoverlabel.bgcolor": page, "hoverlabel.font.color": ink,
    "modebar.bgcolor": "rgba(0,0,0,0)", "modebar.color": rule, "modebar.activecolor": ink };
  for (const axis of ["xaxis", "yaxis"]) {
    look[axis + ".gridcolor"] = look[axis + ".linecolor"] = look[axis + ".zerolinecolor"] = rule;
  }
  return look;
}

const plots = Object.entries(figures).map(([name, figure]) => {
  const axis = { automargin: true, separatethousands: true, exponentformat: "B", showline: true };
  const layout = Object.assign({
    height: narrow ? 300 + 24 * figure.data.length : 380,  // the legend takes more rows
    margin: { l: 10, r: 16, t: 10, b: 10 }, font: { family: "inherit", size: 13 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    dragmode: touch ? false : "zoom",  // on a phone a finger scrolls the page
  }, figure.layout);
  for (const name of ["xaxis", "yaxis"]) {
    const title = Object.assign({ font: { size: 13 } }, layout[name].title);
    layout[name] = Object.assign({}, axis, layout[name], { title });
  }
  const place = document.getElementById(name);
  Plotly.newPlot(place, figure.data, layout, config)
    .then(() => Plotly.relayout(place, theme()));
  return place;
});

function restyle() { plots.forEach(place => Plotly.relayout(place, theme())); }
dark.addEventListener("change", restyle);
addEventListener("beforeprint", () => plots.forEach(place => Plotly.relayout(place, Object.assign(theme(), { width: 680 }))));
addEventListener("afterprint", () => plots.forEach(place => Plotly.relayout(place, Object.assign(theme(), { width: null, autosize: true }))));

const table = document.getElementById("policies");
const heads = [...table.tHead.rows[0].cells];
heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
  const upward = head.getAttribute("aria-sort") !== "ascending";
  heads.forEach(other => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", upward ? "ascending" : "descending");
  const value = row => row.cells[column].dataset.value;
  const order = (one, two) => column ? value(one) - value(two) : value(one).localeCompare(value(two));
  const rows = [...table.tBodies[0].rows].sort((one, two) => upward ? order(one, two) : order(two, one));
  table.tBodies[0].append(...rows);
}));
