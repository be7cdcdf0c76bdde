package perftest

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	f, err := parse(`device soft-lo
FIGURE write_bw perftest 1.0
FIGURE write_bw rxe 0.9
FIGURE write_bw soft 1.5
FIGURE write_bw perftest 1.2
    FIGURE write_bw rxe 0.6
FIGURE write_bw soft 1.5
FIGURE write_lat perftest 10
FIGURE write_lat rxe 12
FIGURE write_lat soft 30
FIGURE write_lat perftest 8
FIGURE write_lat rxe 10
FIGURE write_lat soft 30
FIGURE write_lat perftest 100
FIGURE write_lat rxe 100
FIGURE write_lat soft 30
`)
	require.NoError(t, err)
	got := table(f)
	assert.Contains(t, got, "| `write_bw` | 2 | 1.1 (1.2) GB/s | 0.75 (0.9) GB/s | 1.5 (1.5) GB/s | 0.68 (0.75) | 2.00 (1.67) | 0.90, 0.50 |\n")
	assert.Contains(t, got, "| `write_lat` | 3 | 10 (8) µs | 12 (10) µs | 30 (30) µs | 1.20 (1.25) | 2.50 (3.00) | 1.20, 1.25, 1.00 |\n")
	assert.NotContains(t, got, "read_bw")
}

func TestBadFigures(t *testing.T) {
	for _, line := range []string{"FIGURE write_bw rxe", "FIGURE write_bw rxe fast", "FIGURE write_bw rxe 1 2"} {
		_, err := parse(line)
		assert.ErrorContains(t, err, line)
	}
}

func TestUnknownMeasurement(t *testing.T) {
	assert.ErrorContains(t, run(context.Background(), []string{"write_bw", "walk"}, 1, time.Second, io.Discard), `no measurement "walk"`)
}
