package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTable(t *testing.T) {
	f := figures{}
	for _, output := range []string{
		"device soft-lo, 2 CPUs, go1.26.8\nwrite_rate  4.00 M writes/s of 8 bytes, 250 ns each, batches of 64\n            (8-byte writes)\n",
		"write_rate  2.00 M writes/s of 8 bytes, 500 ns each, batches of 64\n",
		"write_rate  3.00 M writes/s of 8 bytes\n",
	} {
		parseBench(f, 0, output)
		parseBench(f, 1, output)
	}
	parseBench(f, 1, "write_rate  5.00 M writes/s of 8 bytes\n")
	parseBench(f, 0, "write_lat   8.00 µs median, 5.00 µs least, 27.00 µs at 99 %, 100 round trips\n")
	parseBench(f, 1, "write_lat   10.00 µs median, 4.00 µs least, 27.00 µs at 99 %, 100 round trips\n")
	parseBench(f, 0, "styles            median µs\n            poll       8.00      22.00   1.00        0.98       100  Progress in a loop\n")
	parseBench(f, 0, "write_bw    4.6 GB/s with 1048576 bytes in each, 8 in flight\n") // in one version alone
	parseGo(f, 0, "pe", "BenchmarkWake/far-2   \t     100\t     1000 ns/op\t       0 B/op\t       0 allocs/op\n")
	parseGo(f, 1, "pe", "BenchmarkWake/far-2   \t     100\t     1500 ns/op\t 8.00 MB/s\t      16 B/op\t       1 allocs/op\nPASS\n")
	parseGo(f, 1, "pe", "BenchmarkWake/far-2   \t     100\t     1600 ns/op\nBenchmarkWake/far-2   \t     100\t     1500 ns/op\n")
	want := `| measurement | unit | before | after | after : before, of the medians | of the best | each round |
|---|---|---|---|---|---|---|
| bench write_lat, least | µs | 5 (5) | 4 (4) | 0.80 | 0.80 | 0.80 |
| bench write_lat, median | µs | 8 (8) | 10 (10) | 1.25 | 1.25 | 1.25 |
| bench write_rate | M writes/s | 3 (4) | 3.5 (5) | 1.17 | 1.25 | 1.00 1.00 1.00 |
| pe Wake/far | allocs | 0 (0) | 1 (1) | - | - | - |
| pe Wake/far | ns | 1000 (1000) | 1500 (1500) | 1.50 | 1.50 | 1.50 |

Medians of the rounds, and the best round in brackets. Of ns, µs and allocs less is better, of all else more.
`
	assert.Equal(t, want, table(f))
}
