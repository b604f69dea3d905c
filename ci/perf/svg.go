package main

import (
	"fmt"
	"math"
	"strings"
)

// The graphs are plain SVG. A graph has panels one below the other, with a common logarithmic horizontal axis. The
// colours are readable on white and on black.

// panel is one diagram. Its vertical axis begins at 0.
type panel struct {
	title string
	lines []line
}

// line is one line of a panel.
type line struct {
	name   string
	values []float64 // one for each x value
}

// Sizes in pixels.
const (
	graphWidth  = 720
	panelHeight = 200
	marginLeft  = 70
	marginRight = 20
	marginTop   = 46 // above each panel, for its title and the names of its lines
	axisHeight  = 46
)

var colours = []string{"#2f81f7", "#d9822b", "#3fa34d"}

// graph returns an SVG with the panels. xs are the x values, which must be positive and ascending.
func graph(axis string, xs []int, panels ...panel) string {
	var g strings.Builder
	height := len(panels)*(panelHeight+marginTop) + axisHeight
	fmt.Fprintf(&g, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" `+
		`font-family="sans-serif" font-size="12" fill="#808080">`+"\n",
		graphWidth, height, graphWidth, height)
	x := func(i int) float64 {
		low, high := math.Log(float64(xs[0])), math.Log(float64(xs[len(xs)-1]))
		if high == low {
			return marginLeft
		}
		return marginLeft + (math.Log(float64(xs[i]))-low)/(high-low)*(graphWidth-marginLeft-marginRight)
	}
	for i, p := range panels {
		p.draw(&g, i*(panelHeight+marginTop)+marginTop, x, len(xs))
	}
	bottom := len(panels) * (panelHeight + marginTop)
	for i, n := range xs {
		fmt.Fprintf(&g, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x(i), bottom+18, short(n))
	}
	fmt.Fprintf(&g, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n</svg>\n", graphWidth/2, bottom+38, axis)
	return g.String()
}

// draw draws p with its upper edge at top. x returns the horizontal position of the x value with an index, and count is
// the number of x values.
func (p panel) draw(g *strings.Builder, top int, x func(int) float64, count int) {
	highest := 0.0
	for _, l := range p.lines {
		for _, v := range l.values {
			highest = max(highest, v)
		}
	}
	step := tick(highest)
	ceiling := math.Max(1, math.Ceil(highest/step)) * step
	y := func(v float64) float64 { return float64(top) + panelHeight*(1-v/ceiling) }
	fmt.Fprintf(g, `<text x="%d" y="%d" font-weight="bold">%s</text>`+"\n", marginLeft, top-24, p.title)
	for v := 0.0; v <= ceiling*1.001; v += step {
		fmt.Fprintf(g, `<path d="M%d %.1fH%d" stroke="#808080" stroke-opacity=".35"/>`+
			`<text x="%d" y="%.1f" text-anchor="end">%.4g</text>`+"\n",
			marginLeft, y(v), graphWidth-marginRight, marginLeft-8, y(v)+4, v)
	}
	for i, l := range p.lines {
		colour := colours[i%len(colours)]
		fmt.Fprintf(g, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n", marginLeft+i*180, top-8, colour, l.name)
		var path strings.Builder
		for n := range count {
			fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(n, 1)], x(n), y(l.values[n]))
		}
		fmt.Fprintf(g, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", path.String(), colour)
		for n, v := range l.values {
			fmt.Fprintf(g, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"><title>%.4g</title></circle>`+"\n",
				x(n), y(v), colour, v)
		}
	}
}

// tick returns the distance between two ticks of an axis up to highest. The distance is 1, 2 or 5 times a power of ten,
// and highest is three to eight times the distance. If highest is not positive, the distance is 1.
func tick(highest float64) float64 {
	if highest <= 0 {
		return 1
	}
	step := math.Pow(10, math.Floor(math.Log10(highest)))
	for _, part := range []float64{.2, .5, 1} {
		if highest/(step*part) <= 8 {
			return step * part
		}
	}
	return step * 2
}

// short returns a number in a short form, such as 512, 10k or 1M.
func short(n int) string {
	switch {
	case n >= 1_000_000 && n%100_000 == 0:
		return fmt.Sprintf("%gM", float64(n)/1e6)
	case n >= 1000 && n%100 == 0:
		return fmt.Sprintf("%gk", float64(n)/1e3)
	}
	return fmt.Sprint(n)
}

// yValues returns f of each point of the curve.
func yValues(curve []point, f func(point) float64) (list []float64) {
	for _, p := range curve {
		list = append(list, f(p))
	}
	return list
}

// xValues returns At of each point of the curve.
func xValues(curve []point) (list []int) {
	for _, p := range curve {
		list = append(list, p.At)
	}
	return list
}

func ratioOf(p point) float64 { return p.Ratio }

// connectionsGraph returns the graph of rate and latency for different numbers of connections.
func (r *results) connectionsGraph() string {
	c := r.Connections
	return graph("connections", xValues(c),
		panel{"accepted events/s ÷ std", []line{{"measured", yValues(c, ratioOf)}}},
		panel{"ack latency, ms", []line{
			{"p50", yValues(c, func(p point) float64 { return p.P50 })},
			{"p99", yValues(c, func(p point) float64 { return p.P99 })},
		}})
}

// storedGraph returns the graph of rate and latency for different numbers of stored events.
func (r *results) storedGraph() string {
	c := r.Stored
	return graph("stored events", xValues(c),
		panel{"accepted events/s ÷ std, 32 connections", []line{{"measured", yValues(c, ratioOf)}}},
		panel{"latency, ms", []line{
			{"ack p50", yValues(c, func(p point) float64 { return p.P50 })},
			{"ack p99", yValues(c, func(p point) float64 { return p.P99 })},
			{"100 events of an inbox, p50", yValues(c, func(p point) float64 { return p.Read50 })},
		}})
}
