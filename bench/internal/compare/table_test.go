package compare

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTable(t *testing.T) {
	f := figures{}
	const header = "time,test,round,bytes,operations_per_second,bytes_per_second,min_us,typical_us\n"
	bandwidth := func(version int, rate string) {
		parsePerf(f, version, "-s 8", header+"2026,write_bw,0,8,"+rate+",1,,\n")
	}
	for _, rate := range []string{"4e6", "2e6", "3e6"} {
		bandwidth(0, rate)
		bandwidth(1, rate)
	}
	bandwidth(1, "5e6")
	parsePerf(f, 0, "-s 8", header+"2026,write_lat,0,8,1,1,5,8\n")
	parsePerf(f, 1, "-s 8", header+"2026,write_lat,0,8,1,1,4,10\n")
	parsePerf(f, 0, "-test send_lat -e", header+"2026,send_lat,0,8,1,1,4,10\n") // in one version alone
	parsePerf(f, 0, "", header+"2026,read_bw,0,65536,1,2e9,,\n")
	parsePerf(f, 1, "", header+"2026,read_bw,0,65536,1,1e9,,\n")
	parseGo(f, 0, "pe", "BenchmarkWake/far-2   \t     100\t     1000 ns/op\t       0 B/op\t       0 allocs/op\n")
	parseGo(f, 1, "pe", "BenchmarkWake/far-2   \t     100\t     1500 ns/op\t 8.00 MB/s\t      16 B/op\t       1 allocs/op\nPASS\n")
	parseGo(f, 1, "pe", "BenchmarkWake/far-2   \t     100\t     1600 ns/op\nBenchmarkWake/far-2   \t     100\t     1500 ns/op\n")
	parseOverhead(f, 0, "null0\trdma write/1\t400.00\t0.00\nnull0\tC, empty poll\t3.00\t\n")
	parseOverhead(f, 1, "null0\trdma write/1\t200.00\t1.00\nnull0\tC, empty poll\t3.00\t\n")
	want := `| measurement | unit | before | after | after : before, of the medians | of the best | each round |
|---|---|---|---|---|---|---|
| overhead, null0: C, empty poll | ns | 3 (3) | 3 (3) | 1.00 | 1.00 | 1.00 |
| overhead, null0: rdma write/1 | allocs | 0 (0) | 1 (1) | - | - | - |
| overhead, null0: rdma write/1 | ns | 400 (400) | 200 (200) | 0.50 | 0.50 | 0.50 |
| pe Wake/far | allocs | 0 (0) | 1 (1) | - | - | - |
| pe Wake/far | ns | 1000 (1000) | 1500 (1500) | 1.50 | 1.50 | 1.50 |
| read_bw, 65536 bytes | GB/s | 2 (2) | 1 (1) | 0.50 | 0.50 | 0.50 |
| write_bw, 8 bytes | M/s | 3 (4) | 3.5 (5) | 1.17 | 1.25 | 1.00 1.00 1.00 |
| write_lat, 8 bytes, least | µs | 5 (5) | 4 (4) | 0.80 | 0.80 | 0.80 |
| write_lat, 8 bytes, median | µs | 8 (8) | 10 (10) | 1.25 | 1.25 | 1.25 |

Medians of the rounds, and the best round in brackets. Of ns, µs and allocs less is better, of all else more.
`
	assert.Equal(t, want, table(f))
}
