// Package counters reads structs of counters. A field is described by its tags: its name after
// counter (a total) or gauge (a value that may fall), its unit after unit, and what it counts after
// help. Fields are unsigned numbers, or durations, whose unit is nanoseconds. Embedded structs are
// read too; other fields without tags are no counters.
package counters

import (
	"reflect"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

var duration = reflect.TypeFor[time.Duration]()

// Of returns the counters of a struct, in the order of its fields.
func Of(c any) []verbs.Counter { return appendTo(nil, reflect.ValueOf(c)) }

func appendTo(list []verbs.Counter, v reflect.Value) []verbs.Counter {
	t := v.Type()
	for i := range t.NumField() {
		field, tag := t.Field(i), t.Field(i).Tag
		if field.Anonymous {
			list = appendTo(list, v.Field(i))
			continue
		}
		c := verbs.Counter{Name: tag.Get("counter"), Help: tag.Get("help"), Unit: tag.Get("unit")}
		if c.Name == "" {
			c.Name, c.Gauge = tag.Get("gauge"), true
		}
		switch {
		case c.Name == "":
			continue
		case field.Type == duration:
			c.Value, c.Unit = uint64(max(v.Field(i).Int(), 0)), "nanoseconds"
		default:
			c.Value = v.Field(i).Uint()
		}
		list = append(list, c)
	}
	return list
}

// Add adds the counters of from to those of to: numbers are summed up, and of durations the longer
// one stays.
func Add[T any](to, from *T) { add(reflect.ValueOf(to).Elem(), reflect.ValueOf(from).Elem()) }

func add(to, from reflect.Value) {
	for i := range to.NumField() {
		switch a, b := to.Field(i), from.Field(i); {
		case a.Kind() == reflect.Struct:
			add(a, b)
		case a.Type() == duration:
			a.SetInt(max(a.Int(), b.Int()))
		case a.CanUint():
			a.SetUint(a.Uint() + b.Uint())
		}
	}
}

// ClearGauges sets the gauges of a struct to zero.
func ClearGauges[T any](c *T) { clearGauges(reflect.ValueOf(c).Elem()) }

func clearGauges(v reflect.Value) {
	for i := range v.NumField() {
		if field := v.Type().Field(i); field.Anonymous {
			clearGauges(v.Field(i))
		} else if field.Tag.Get("gauge") != "" {
			v.Field(i).SetZero()
		}
	}
}

// AddLists adds the counters of one list to those of another, as Add does, and appends those that
// the other does not have.
func AddLists(to, from []verbs.Counter) []verbs.Counter {
	for i := range from {
		f := &from[i]
		at := slices.IndexFunc(to, func(c verbs.Counter) bool { return c.Name == f.Name && c.Port == f.Port })
		switch {
		case at < 0:
			to = append(to, *f)
		case f.Unit == "nanoseconds":
			to[at].Value = max(to[at].Value, f.Value)
		default:
			to[at].Value += f.Value
		}
	}
	return to
}
