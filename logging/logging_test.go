package logging_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/logging"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// withoutTime removes the time of records.
func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

func Example() {
	handler := slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime})
	log := logging.ToSlog(handler)
	log.Info().Str("device", "soft-lo").Int("queue pairs", 2).Msg("the device is open")
	log.Debug().Msg("the handler is not enabled for this")
	// Output: level=INFO msg="the device is open" device=soft-lo "queue pairs"=2
}

// to returns a logger, and the text of what has been logged since the last call.
func to(options slog.HandlerOptions) (zerolog.Logger, func() string) {
	var text bytes.Buffer
	options.ReplaceAttr = withoutTime
	return logging.ToSlog(slog.NewTextHandler(&text, &options)), func() string {
		defer text.Reset()
		return text.String()
	}
}

func TestLevels(t *testing.T) {
	var least slog.LevelVar
	least.Set(slog.LevelDebug - 4)
	log, text := to(slog.HandlerOptions{Level: &least})
	for level, want := range map[zerolog.Level]string{
		zerolog.TraceLevel: "DEBUG-4", zerolog.DebugLevel: "DEBUG", zerolog.InfoLevel: "INFO",
		zerolog.WarnLevel: "WARN", zerolog.ErrorLevel: "ERROR", zerolog.FatalLevel: "ERROR+4",
		zerolog.PanicLevel: "ERROR+8", zerolog.NoLevel: "INFO",
	} {
		log.WithLevel(level).Msg("m")
		assert.Equal(t, "level="+want+" msg=m\n", text(), level)
	}
	log.Print("p")
	assert.Equal(t, "level=DEBUG msg=p\n", text())

	// The handler's level counts at the time of the record.
	least.Set(slog.LevelWarn)
	log.Info().Msg("m")
	assert.Nil(t, log.Info(), "no field is collected")
	assert.Empty(t, text())
	log.Warn().Msg("m")
	assert.NotEmpty(t, text())
}

func TestFields(t *testing.T) {
	log, text := to(slog.HandlerOptions{})
	log.Warn().Err(errors.New("no route")).Int64("low", math.MinInt64).Uint64("high", math.MaxUint64).
		Float64("part", 0.5).Bool("up", true).Dur("wait", 1500*time.Microsecond).Interface("none", nil).
		Strs("names", []string{"a b", `"`}).Bytes("bytes", []byte("\x00ü")).Msg("")
	assert.Equal(t, `level=WARN msg="" error="no route" low=-9223372036854775808 high=18446744073709551615 `+
		`part=0.5 up=true wait=1.5 none=<nil> names="[a b \"]" bytes="\x00ü"`+"\n", text())

	sub := log.With().Str("device", "soft-lo").Timestamp().Logger()
	sub.Info().Dict("peer", zerolog.Dict().Str("gid", "::1").Dict("qp", zerolog.Dict().Int("number", 17))).Str("z", "").Str("a", "").Msg("m")
	assert.Equal(t, "level=INFO msg=m device=soft-lo peer.gid=::1 peer.qp.number=17 z=\"\" a=\"\"\n", text())
}

// An attribute is added to a handler's own attributes and groups.
func TestHandlerWithGroup(t *testing.T) {
	var text bytes.Buffer
	handler := slog.NewTextHandler(&text, &slog.HandlerOptions{ReplaceAttr: withoutTime})
	log := logging.ToSlog(handler.WithAttrs([]slog.Attr{slog.String("host", "a")}).WithGroup("rdma"))
	log.Info().Int("n", 1).Msg("m")
	assert.Equal(t, "level=INFO msg=m host=a rdma.n=1\n", text.String())
}

// The time of a record is when it was logged.
func TestTime(t *testing.T) {
	var got time.Time
	log := logging.ToSlog(handlerFunc(func(r slog.Record) error { got = r.Time; return nil }))
	before := time.Now()
	log.Info().Msg("m")
	assert.WithinRange(t, got, before, time.Now())
}

// What the handler refuses, and what is no record, is an error of the writer.
func TestErrors(t *testing.T) {
	full := errors.New("full")
	log := logging.ToSlog(handlerFunc(func(slog.Record) error { return full }))
	var reported error
	old := zerolog.ErrorHandler
	zerolog.ErrorHandler = func(err error) { reported = err }
	defer func() { zerolog.ErrorHandler = old }()
	log.Info().Msg("m")
	require.ErrorIs(t, reported, full)
	for _, raw := range []string{`{`, `{"a":[1`, `{"a":tru`} {
		log.Info().RawJSON("x", []byte(raw)).Msg("m")
		require.ErrorContains(t, reported, "pass the log record")
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"a":[1,{"b":null}],"c":1e999}`))
	f.Fuzz(func(_ *testing.T, raw []byte) {
		log := logging.ToSlog(handlerFunc(func(slog.Record) error { return nil }))
		old := zerolog.ErrorHandler
		zerolog.ErrorHandler = func(error) {}
		defer func() { zerolog.ErrorHandler = old }()
		log.Info().RawJSON("x", raw).Msg("m")
	})
}

// handlerFunc is a handler that is enabled for all levels.
type handlerFunc func(slog.Record) error

func (handlerFunc) Enabled(context.Context, slog.Level) bool        { return true }
func (f handlerFunc) Handle(_ context.Context, r slog.Record) error { return f(r) }
func (f handlerFunc) WithAttrs([]slog.Attr) slog.Handler            { return f }
func (f handlerFunc) WithGroup(string) slog.Handler                 { return f }
