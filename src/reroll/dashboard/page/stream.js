// What the server sends: the points of the past once, then a frame for each sample.

const KEPT = 600; // points, as many as the server has

export function listen({ onFrame, onLife }) {
  const points = [];
  const source = new EventSource("events");
  source.addEventListener("history", ({ data }) => {
    points.splice(0, points.length, ...JSON.parse(data));
  });
  source.addEventListener("frame", ({ data }) => {
    const frame = JSON.parse(data);
    if (frame.point.at !== points.at(-1)?.at) points.push(frame.point);
    points.splice(0, points.length - KEPT);
    onLife(frame.kind === "file" ? "still" : "live", frame.kind === "file" ? "file" : "live");
    onFrame(frame, points);
  });
  source.addEventListener("problem", ({ data }) => onLife("lost", JSON.parse(data)));
  source.addEventListener("error", () => onLife("lost", source.readyState === EventSource.CLOSED ? "ended; load the page again" : "connecting again"));
}
