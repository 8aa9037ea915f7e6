package main

import (
	"errors"
	"image/color"
	"math"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Each target has a colour, and each plotted quantity a shape and a dash.
var (
	colours = map[string]color.Color{
		onSQLite:   color.RGBA{R: 0x1f, G: 0x77, B: 0xb4, A: 0xff},
		onPostgres: color.RGBA{R: 0x2c, G: 0xa0, B: 0x2c, A: 0xff},
		stock:      color.RGBA{R: 0xd6, G: 0x27, B: 0x28, A: 0xff},
	}
	shapes = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.TriangleGlyph{}, draw.SquareGlyph{}, draw.CrossGlyph{},
		draw.RingGlyph{}}
	dashes = [][]vg.Length{nil, {6, 3}, {2, 2}, {8, 3, 2, 3}, {1, 3}}
)

// writePlots plots latency and memory against the number of objects.
func writePlots(r *results, dir string) error {
	return errors.Join(
		writePlot(r, filepath.Join(dir, "performance-latency.svg"), "Latency over the number of Pods", "ms",
			func(s *series) bool {
				return s.Unit == "ms"
			}),
		writePlot(r, filepath.Join(dir, "performance-memory.svg"), "Memory over the number of Pods", "MB",
			func(s *series) bool {
				return s.Unit == "MB"
			}),
	)
}

// writePlot plots the selected series on logarithmic axes, with a colour for each target
// and a dash and a shape for each series. Without such series it writes no file.
func writePlot(r *results, path, title, unit string, isIn func(*series) bool) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, "Pods", unit
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.TextStyle.Font.Size, p.Legend.Padding = 8, 2
	p.Add(plotter.NewGrid())
	var names []string
	for _, s := range r.Series {
		if isIn(s) && !slices.Contains(names, s.Name) {
			names = append(names, s.Name)
		}
	}
	lines := 0
	for i, name := range names {
		for _, target := range []string{stock, onPostgres, onSQLite} {
			points := r.points(name, target)
			if len(points) == 0 {
				continue
			}
			line, marks, err := plotter.NewLinePoints(points)
			if err != nil {
				return err
			}
			line.Color, marks.Color = colours[target], colours[target]
			line.Dashes, marks.Shape = dashes[i%len(dashes)], shapes[i%len(shapes)]
			p.Add(line, marks)
			p.Legend.Add(name+", "+target, line, marks)
			lines++
		}
	}
	if len(names) == 0 {
		return nil
	}
	// The legend is above the plot: each of its lines takes a fortieth of the height.
	p.Y.Max *= math.Pow(p.Y.Max/p.Y.Min, float64(lines)/40)
	return p.Save(9*vg.Inch, 7*vg.Inch, path)
}

// points are the values of all suites by the number of objects. It leaves out zeros, which
// have no logarithm.
func (r *results) points(name, target string) plotter.XYs {
	var all plotter.XYs
	for _, s := range r.Series {
		if s.Name != name {
			continue
		}
		for _, p := range s.Points[target] {
			if p.Objects > 0 && p.Value > 0 {
				all = append(all, plotter.XY{X: float64(p.Objects), Y: p.Value})
			}
		}
	}
	slices.SortFunc(all, func(a, b plotter.XY) int { return int(a.X - b.X) })
	return all
}
