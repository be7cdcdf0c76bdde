package sim

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Schedule is a list of faults, in the order in which they begin. A run of the same seed can be
// repeated with it, or with parts of it left out: see [Replay].
type Schedule []Fault

// Fault is a fault that a [Nemesis] causes.
type Fault struct {
	Nemesis int           // which one of the simulation's causes it, counted from 0
	At, For time.Duration // the time of the simulation at which it begins, and how long it lasts; For zero: until the chaos ends
	Kind    FaultKind     // what it does
	Hosts   []string      // the names of the hosts to which it happens
	Rest    []string      // the other side of a partition, or the end of a link
	Link    LinkConfig    // what a bad link is like
	Offset  time.Duration // by which a clock jumps
	Drift   float64       // by how much of its rate a clock is too fast
}

// FaultKind is what a fault does.
type FaultKind int

// The kinds of faults.
const (
	Crash     FaultKind = iota // the host crashes, and restarts in the end
	Pause                      // the host stands still
	Partition                  // Hosts and Rest are cut off from each other
	OneWayOut                  // nothing gets from Hosts to Rest
	OneWayIn                   // nothing gets from Rest to Hosts
	BadLink                    // the link from Hosts to Rest, one host each, is as Link says
	BadClock                   // the clock of the host jumps by Offset, and is too fast by Drift; it jumps back in the end
	BadDisk                    // reads from the disk of the host fail
)

// kinds are what the kinds of faults do, each in its place.
var kinds = [...]struct {
	name string
	what string // in words, for Fault.what
	down bool   // Chaos.MaxDown counts the hosts
	// cause makes a fault happen, and returns how it ends; nil if it is not possible now.
	cause func(n *Nemesis, f *fault, hosts, rest []*Host) (end func())
}{
	Crash: {"Crash", "host %[1]s crashes", true, func(_ *Nemesis, f *fault, hosts, _ []*Host) func() {
		if !hosts[0].busy() {
			return nil
		}
		hosts[0].crash(f)
		return func() { hosts[0].endCrash(f) }
	}},
	Pause: {"Pause", "host %[1]s pauses", true, func(_ *Nemesis, f *fault, hosts, _ []*Host) func() {
		hosts[0].pause(f)
		return func() { hosts[0].endPause(f) }
	}},
	Partition: {"Partition", "%[1]s and %[2]s cannot reach each other", true, func(n *Nemesis, f *fault, hosts, rest []*Host) func() {
		return n.cut(f, pairs(hosts, rest, pairs(rest, hosts, nil)))
	}},
	OneWayOut: {"OneWayOut", "nothing gets from %[1]s to %[2]s", true, func(n *Nemesis, f *fault, hosts, rest []*Host) func() {
		return n.cut(f, pairs(hosts, rest, nil))
	}},
	OneWayIn: {"OneWayIn", "nothing gets from %[2]s to %[1]s", true, func(n *Nemesis, f *fault, hosts, rest []*Host) func() {
		return n.cut(f, pairs(rest, hosts, nil))
	}},
	BadLink: {"BadLink", "the link from %[1]s to %[2]s is bad: %[3]s", false, (*Nemesis).worsen},
	BadClock: {"BadClock", "the clock of host %[1]s jumps by %[4]v, and is too fast by %.4[5]f", false, func(_ *Nemesis, f *fault, hosts, _ []*Host) func() {
		return f.among(hosts[0].setClockFaults)
	}},
	BadDisk: {"BadDisk", "reads from the disk of host %[1]s fail", false, func(_ *Nemesis, f *fault, hosts, _ []*Host) func() {
		return f.among(hosts[0].disk.setBad)
	}},
}

// String is the name of the kind.
func (k FaultKind) String() string { return kinds[k].name }

// String says in words what happens, and when.
func (f Fault) String() string {
	if f.For == 0 {
		return fmt.Sprintf("%v until the end: %s", f.At, f.what())
	}
	return fmt.Sprintf("%v for %v: %s", f.At, f.For, f.what())
}

func (f *Fault) what() string {
	link := strings.Trim(literal(reflect.ValueOf(f.Link)), "{}")
	return fmt.Sprintf(kinds[f.Kind].what, strings.Join(f.Hosts, ", "), strings.Join(f.Rest, ", "), link, f.Offset, f.Drift)
}

// GoString is a Go literal of the schedule.
func (s Schedule) GoString() string {
	var b strings.Builder
	b.WriteString("sim.Schedule{\n")
	for _, f := range s {
		fmt.Fprintf(&b, "\t%s,\n", literal(reflect.ValueOf(f)))
	}
	return b.String() + "}"
}

// literal is a value in Go, in a composite literal of its type. Fields that are zero are left out.
func literal(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		for _, unit := range []struct {
			d    time.Duration
			name string
		}{{time.Second, "Second"}, {time.Millisecond, "Millisecond"}, {time.Microsecond, "Microsecond"}} {
			if x%unit.d == 0 {
				return fmt.Sprintf("%d * time.%s", x/unit.d, unit.name)
			}
		}
		return fmt.Sprint(int64(x))
	case FaultKind:
		return "sim." + x.String()
	case []string:
		return fmt.Sprintf("%#v", x)
	}
	if v.Kind() != reflect.Struct {
		return fmt.Sprintf("%v", v)
	}
	var fields []string
	for i := range v.NumField() {
		f, name := v.Field(i), v.Type().Field(i).Name
		if text := literal(f); f.Kind() == reflect.Struct && !f.IsZero() {
			fields = append(fields, name+": sim.LinkConfig"+text)
		} else if !f.IsZero() || name == "Kind" {
			fields = append(fields, name+": "+text)
		}
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

// simpler returns faults that are less than a fault, or easier to read: on fewer hosts, shorter, at
// rounder times.
func (f Fault) simpler() (list []Fault) {
	add := func(change func(g *Fault)) {
		g := f
		change(&g)
		list = append(list, g)
	}
	for i := range f.Hosts {
		if len(f.Hosts) > 1 {
			add(func(g *Fault) { g.Hosts = slices.Delete(slices.Clone(f.Hosts), i, i+1) })
		}
	}
	for i := range f.Rest {
		if len(f.Rest) > 1 {
			add(func(g *Fault) { g.Rest = slices.Delete(slices.Clone(f.Rest), i, i+1) })
		}
	}
	if f.Offset != 0 && f.Drift != 0 {
		add(func(g *Fault) { g.Offset = 0 })
		add(func(g *Fault) { g.Drift = 0 })
	}
	if f.For > time.Millisecond {
		add(func(g *Fault) { g.For = max((f.For / 2).Truncate(time.Millisecond), time.Millisecond) })
	}
	for _, unit := range []time.Duration{time.Second, 100 * time.Millisecond, 10 * time.Millisecond, time.Millisecond} {
		if f.At%unit != 0 {
			add(func(g *Fault) { g.At = f.At.Round(unit) })
		}
		if f.For%unit != 0 && f.For > unit {
			add(func(g *Fault) { g.For = f.For.Truncate(unit) })
		}
	}
	return list
}
