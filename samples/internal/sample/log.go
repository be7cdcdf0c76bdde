package sample

import (
	"io"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/internal/terminal"
)

// newLog makes a log for people to read, in colour on a terminal.
func newLog(w io.Writer, level zerolog.Level) zerolog.Logger {
	console := zerolog.ConsoleWriter{Out: w, TimeFormat: "15:04:05", NoColor: !terminal.Colours(w)}
	return zerolog.New(console).Level(level).With().Timestamp().Logger()
}
