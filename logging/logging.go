// Package logging joins the logs of the SDK, which are those of zerolog, to a log/slog handler.
//
//	engine := pe.New(pe.Config{Log: logging.ToSlog(slog.Default().Handler())})
package logging

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/rs/zerolog"
)

// ToSlog returns a logger that passes its records on to a handler, on the goroutine that logs.
// The fields of a record become attributes in their order, and objects become groups. Numbers
// arrive as int64, uint64 or float64, arrays as []any, errors as their texts, and durations as
// numbers in units of zerolog.DurationFieldUnit (milliseconds if the program has not set it).
//
// Levels have the values of package slog; trace is slog.LevelDebug-4, fatal slog.LevelError+4, and
// panic slog.LevelError+8. A record without a level is slog.LevelInfo. Records for which the
// handler is not enabled cost no more than that question.
func ToSlog(h slog.Handler) zerolog.Logger {
	return zerolog.New(writer{h}).Sample(enabled{h})
}

// level returns the level of package slog.
func level(l zerolog.Level) slog.Level {
	if l == zerolog.NoLevel {
		return slog.LevelInfo
	}
	return slog.Level(l-zerolog.InfoLevel) * (slog.LevelWarn - slog.LevelInfo)
}

// enabled is a sampler, which zerolog asks before it collects the fields of a record.
type enabled struct{ handler slog.Handler }

func (e enabled) Sample(l zerolog.Level) bool {
	return e.handler.Enabled(context.Background(), level(l))
}

// writer implements zerolog.LevelWriter.
type writer struct{ handler slog.Handler }

func (w writer) Write(record []byte) (int, error) { return w.WriteLevel(zerolog.NoLevel, record) }

func (w writer) WriteLevel(l zerolog.Level, record []byte) (int, error) {
	decoder := json.NewDecoder(bytes.NewReader(record))
	decoder.UseNumber()
	value, err := decode(decoder)
	if err != nil {
		return 0, fmt.Errorf("pass the log record %.100q to package slog: %w", record, err)
	}
	r := slog.NewRecord(time.Now(), level(l), "", 0)
	for _, a := range value.Group() {
		switch a.Key {
		case zerolog.LevelFieldName, zerolog.TimestampFieldName:
		case zerolog.MessageFieldName:
			r.Message = a.Value.String()
		default:
			r.AddAttrs(a)
		}
	}
	return len(record), w.handler.Handle(context.Background(), r)
}

// decode reads a value. The order of an object's members is kept.
func decode(d *json.Decoder) (slog.Value, error) {
	token, err := d.Token()
	if err != nil {
		return slog.Value{}, err
	}
	switch token {
	case json.Delim('{'):
		attrs := []slog.Attr{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return slog.Value{}, err
			}
			value, err := decode(d)
			if err != nil {
				return slog.Value{}, err
			}
			attrs = append(attrs, slog.Attr{Key: key.(string), Value: value}) // Token has checked the key
		}
		_, err = d.Token()
		return slog.GroupValue(attrs...), err
	case json.Delim('['):
		list := []any{}
		for d.More() {
			value, err := decode(d)
			if err != nil {
				return slog.Value{}, err
			}
			list = append(list, value.Any())
		}
		_, err = d.Token()
		return slog.AnyValue(list), err
	}
	if n, is := token.(json.Number); is {
		return number(n.String()), nil
	}
	return slog.AnyValue(token), nil
}

func number(text string) slog.Value {
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return slog.Int64Value(i)
	}
	if u, err := strconv.ParseUint(text, 10, 64); err == nil {
		return slog.Uint64Value(u)
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return slog.StringValue(text)
	}
	return slog.Float64Value(f)
}
