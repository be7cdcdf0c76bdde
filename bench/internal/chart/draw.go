package chart

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	width  = 20 * vg.Centimeter
	height = 11 * vg.Centimeter // of each plot
)

// errNothing: the reports hold no data for any plot.
var errNothing = errors.New("the reports contain nothing to draw: a plot needs latencies, the bandwidth of reads, writes or messages, or rates with several numbers of connections (-q 1,2,4)")

// SVG draws the plots, one below the other.
func SVG(w io.Writer, sets []Set) error {
	list := figures(sets)
	if len(list) == 0 {
		return errNothing
	}
	canvas := vgsvg.New(width, height*vg.Length(len(list)))
	whole := draw.New(canvas)
	for i := range list {
		p, err := list[i].plot()
		if err != nil {
			return fmt.Errorf("draw %s: %w", list[i].title, err)
		}
		top := height * vg.Length(len(list)-i)
		p.Draw(draw.Canvas{Canvas: whole, Rectangle: vg.Rectangle{
			Min: vg.Point{X: 0, Y: top - height}, Max: vg.Point{X: width - 3*vg.Millimeter, Y: top - 3*vg.Millimeter},
		}})
	}
	_, err := canvas.WriteTo(w)
	return err
}

// plot makes the plot of a figure.
func (f *figure) plot() (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = f.title, f.x, f.y
	p.BackgroundColor = color.White
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	if f.powers {
		p.X.Tick.Marker = powerTicks{}
	}
	p.Legend.Top, p.Legend.Left = !f.stepped, !f.stepped // the corner that curves seldom reach
	p.Add(plotter.NewGrid())
	low, high := math.Inf(1), 0.0
	for i, s := range f.series {
		line, err := plotter.NewLine(s.points)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = plotutil.Color(i), vg.Points(1.2)
		if f.stepped {
			line.StepStyle = plotter.PostStep
			p.Add(line)
			p.Legend.Add(s.name, line)
		} else {
			dots, err := plotter.NewScatter(s.points)
			if err != nil {
				return nil, err
			}
			dots.Color, dots.Shape, dots.Radius = plotutil.Color(i), plotutil.Shape(i), vg.Points(2.5)
			p.Add(line, dots)
			p.Legend.Add(s.name, line, dots)
		}
		low, high = min(low, s.points[0].X), max(high, s.points[len(s.points)-1].X)
	}
	p.Y.Min = 0
	// A logarithmic axis needs a range, even for one value.
	p.X.Min, p.X.Max = low, high
	if low == high {
		p.X.Min, p.X.Max = low/2, high*2
	}
	if p.Y.Max <= 0 {
		p.Y.Max = 1
	}
	if p.Legend.Top { // leave room for the legend above the curves
		p.Y.Max /= 1 - 0.05*float64(min(len(f.series), 10))
	}
	return p, nil
}

// powerTicks marks powers of two, in binary units.
type powerTicks struct{}

// Ticks implements plot.Ticker.
func (powerTicks) Ticks(low, high float64) (list []plot.Tick) {
	first, last := math.Ceil(math.Log2(low)-1e-9), math.Floor(math.Log2(high)+1e-9)
	every := math.Max(1, math.Ceil((last-first)/12))
	for e := first; e <= last; e++ {
		t := plot.Tick{Value: math.Exp2(e)}
		if math.Mod(e-first, every) == 0 {
			t.Label = binary(t.Value)
		}
		list = append(list, t)
	}
	return list
}

func binary(v float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1 << 30, " Gi"}, {1 << 20, " Mi"}, {1 << 10, " Ki"}} {
		if v >= u.size {
			return strconv.FormatFloat(v/u.size, 'g', -1, 64) + u.name
		}
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
