package report

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	bandwidth = `{"format":"verbena-perf","version":1,"plan":{"test":"write_bw"},"path":{"way":"shared memory"},"results":[{"size":8,"operations_per_second":5,"bytes_per_second":40}]}`
	latency   = `{"format":"verbena-perf","version":1,"plan":{"test":"read_lat"},"results":[{"size":8,"latency_us":{"min":1,"typical":2,"avg":3,"p99":4,"histogram":[{"ns":2000,"n":1}]}}]}`
)

func TestRead(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.json")
	require.NoError(t, os.WriteFile(name, []byte(bandwidth+latency), 0o600))
	list, err := ReadFiles([]string{name, name})
	require.NoError(t, err)
	require.Len(t, list, 4)
	assert.Equal(t, "shared memory", list[2].Path.Way)
	assert.Equal(t, Result{Size: 8, Rate: 5, Bandwidth: 40}, list[0].Results[0])
	assert.Equal(t, &Latency{Min: 1, Median: 2, Mean: 3, P99: 4, Bars: []Bar{{2000, 1}}}, list[1].Results[0].Latency)
	_, err = ReadFiles([]string{name + "x"})
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func TestReadOthers(t *testing.T) {
	cases := map[string]string{
		"x":                                     "not a report",
		"":                                      "no report",
		"{}":                                    "format",
		`{"format":"verbena-perf","version":2}`: "version 2",
		strings.Replace(latency, "read_lat", "read_bw", 1):               "wrong kind",
		strings.Replace(bandwidth, "write_bw", "write_lat", 1):           "wrong kind",
		strings.Replace(bandwidth, `"size"`, `"damage":"rot","size"`, 1): "rot",
	}
	for _, field := range []string{`_second":5`, `_second":40`, `"min":1`, `"typical":2`, `"avg":3`, `"p99":4`} {
		name, _, _ := strings.Cut(field, ":")
		for _, text := range []string{bandwidth, latency} {
			if strings.Contains(text, field) {
				cases[strings.Replace(text, field, name+":0", 1)] = "is 0, which is not positive"
				cases[strings.Replace(text, field, name+":-2.5", 1)] = "is -2.5, which is not positive"
			}
		}
	}
	require.Len(t, cases, 19)
	for text, want := range cases {
		_, err := Read(strings.NewReader(text))
		assert.ErrorContains(t, err, want, text)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(bandwidth + latency))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = Read(bytes.NewReader(b)) })
}
