package pe_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/pe"
)

// An engine drives contexts and runs their callbacks. The context here is that of the example
// of Backend, whose tasks are alarms; those of packages rdma, dma and syncevent are driven
// likewise.
func ExampleEngine() {
	engine := pe.New(pe.Config{})
	defer engine.Close()
	alarms, err := NewAlarms(1, func(t *AlarmTask, err error) {
		fmt.Println("the alarm has gone off")
		_ = t.Free()
		_ = t.alarms.Stop()
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	alarms.OnStateChange(func(prev, next pe.State) {
		fmt.Println(prev, "→", next)
		if next == pe.Running {
			t, err := alarms.Alloc(time.Millisecond)
			if err == nil {
				err = t.Submit()
			}
			alarms.Fail(err) // nil does nothing
		}
	})
	fmt.Println(engine.Connect(alarms), alarms.Start())
	fmt.Println(engine.Run(context.Background())) // until every context is Idle
	// Output:
	// <nil> <nil>
	// Idle → Running
	// the alarm has gone off
	// Running → Stopping
	// Stopping → Idle
	// <nil>
}

// A program that is interrupted: another goroutine has a function run on the engine's.
func ExampleEngine_Do() {
	engine := pe.New(pe.Config{})
	defer engine.Close()
	alarms, _ := NewAlarms(1, func(t *AlarmTask, err error) { _ = t.Free() })
	fmt.Println(engine.Connect(alarms), alarms.Start())
	go func() {
		if err := engine.Do(func() { _ = alarms.Stop() }); err != nil {
			fmt.Println(err)
		}
	}()
	fmt.Println(engine.Run(context.Background()), alarms.State())
	// Output:
	// <nil> <nil>
	// <nil> Idle
}

// A callback has nobody to return an error to. It gives it to Fail; Run returns it.
func ExampleCore_Fail() {
	engine := pe.New(pe.Config{})
	defer engine.Close()
	alarms, _ := NewAlarms(1, func(t *AlarmTask, err error) { _ = t.Free() })
	alarms.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			alarms.Fail(errors.New("the clock has stopped"))
		}
	})
	fmt.Println(engine.Connect(alarms), alarms.Start())
	fmt.Println(engine.Run(context.Background()))
	// Output:
	// <nil> <nil>
	// context "alarms": the clock has stopped
}

// A call that is not legal in the state of its context says where it is.
func ExampleStateError() {
	engine := pe.New(pe.Config{})
	defer engine.Close()
	alarms, _ := NewAlarms(1, func(t *AlarmTask, err error) { _ = t.Free() })
	_ = engine.Connect(alarms)
	_, err := alarms.Alloc(time.Second)
	fmt.Println(err)
	var wrong *pe.StateError
	fmt.Println(errors.As(err, &wrong), wrong.State, wrong.Legal)
	// Output:
	// pe: cannot allocate from pool "alarm tasks": context "alarms" is Idle, and the call is legal only in Running
	// true Idle [Running]
}
