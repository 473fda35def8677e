// What the browser does with report.html: figures, print, the filter of runs. No text of a run is in here; the page's
// policy lets nothing else be executed.
const plots = JSON.parse(document.getElementById("plots").textContent);
for (const [name, plot] of Object.entries(plots)) {
  Plotly.newPlot("plot-" + name, plot.data, plot.layout, {responsive: true, displaylogo: false, modeBarButtons: [["toImage"]]});
}
// Plotly draws for the screen's width; paper is narrower: two figures in the 700 pixels of an A4 or letter page.
const draw_again = (width) => document.querySelectorAll(".plot").forEach((plot) => Plotly.relayout(plot, width(plot)));
addEventListener("beforeprint", () => draw_again((plot) => ({width: plot.closest(".wide") ? 700 : 330})));
addEventListener("afterprint", () => draw_again(() => ({width: null, autosize: true})));
// A link to a definition opens the list that contains it.
const open_target = () => document.getElementById(location.hash.slice(1))?.closest("details")?.setAttribute("open", "");
addEventListener("hashchange", open_target);
open_target();
// Tables that are wider than the page have a hint above them.
const hint = () => document.querySelectorAll(".scroll").forEach((box) => {
  box.previousElementSibling.hidden = box.scrollWidth <= box.clientWidth;
});
addEventListener("resize", hint);
hint();
// The box filters the rows of runs, used or not: a row stays when it holds every word.
const box = document.getElementById("find");
const rows = [...document.querySelectorAll("table.runs tbody tr")];
// Where a table ends early, the rest of its rows is not searched.
const noun = document.querySelector(".left-out") ? "rows shown" : "runs";
const filter = () => {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
  const left = rows.filter((row) => !row.hidden).length;
  box.parentElement.querySelector("output").value = words.length ? `${left} of ${rows.length} ${noun}` : "";
};
if (box) {
  box.addEventListener("input", filter);
  box.parentElement.hidden = false;
  filter();  // a browser may restore what was typed
}
