package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/result"
)

// fakes print what the programs of others would, by the name of the file that is run.
var fakes = map[string]func(args []string){
	"ucx_info": func([]string) { fmt.Println("# Version 1.13.1") },
	"fi_info":  func([]string) { fmt.Println("fi_info: 1.17.0") },
	"ucx_perftest": func(args []string) {
		if meet(args, "-p", slices.Contains(args, "-v")) {
			fmt.Printf("iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n%s,0.5,0.7,0.6,900,1000,2000000,3000000\n", valueOf(args, "-n"))
		}
	},
	"fi_pingpong": func([]string) { fmt.Println("no such provider"); os.Exit(3) },
	"fi_rma_bw": func(args []string) {
		if client := slices.Contains(args, "-P"); meet(args, map[bool]string{true: "-P", false: "-B"}[client], client) {
			fmt.Println("what is this?")
		}
	},
}

func valueOf(args []string, flag string) string { return args[slices.Index(args, flag)+1] }

// meet serves one client, or is it. It reports which.
func meet(args []string, port string, client bool) bool {
	at := "127.0.0.1:" + valueOf(args, port)
	if client {
		if c, err := net.Dial("tcp", at); err != nil || c.Close() != nil {
			os.Exit(1)
		}
		return true
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		os.Exit(1)
	}
	if c, err := l.Accept(); err == nil {
		_, _ = io.Copy(io.Discard, c)
	}
	return false
}

// Verbena beside programs that play the others: some measure, some fail, some are not there.
func TestPeers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux")
	}
	folder := t.TempDir()
	for name := range fakes {
		require.NoError(t, os.Symlink(os.Args[0], filepath.Join(folder, name)))
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	report, document := filepath.Join(folder, "a.json"), filepath.Join(folder, "a.md")
	require.NoError(t, os.WriteFile(document, []byte("before\n"+result.Begin+"\n"+result.End+"\nbehind\n"), 0o600))
	rounds := 2
	if testing.Short() {
		rounds = 1
	}
	p := start(t, verbena(nil, "perf", "peers", "-scene", "local,adapter", "-rounds", strconv.Itoa(rounds), "-D", "10ms", "-timeout", patience.String(), "-json", report, "-markdown", document, "-verbose")...)
	p.succeed()

	b, err := os.ReadFile(report)
	require.NoError(t, err)
	var r result.Result
	require.NoError(t, json.Unmarshal(b, &r))
	assert.Equal(t, rounds, r.Rounds)
	assert.Contains(t, r.Programs, result.Program{Name: "UCX", Version: "1.13.1"})
	s := r.Scenes[0]
	assert.Equal(t, []string{"Verbena, shared memory", "Verbena, UDP", "UCX posix,cma", "UCX tcp", "libfabric tcp", "libfabric tcp, fi_rma_bw"}, s.Contenders)
	count := map[string]int{}
	for _, c := range s.Cells {
		count[c.Contender]++
		require.Len(t, c.Rounds, rounds)
		for _, sample := range c.Rounds {
			switch {
			case strings.HasPrefix(c.Contender, "libfabric"):
				assert.Nil(t, sample)
			case assert.NotNil(t, sample, "%+v", c):
				assert.Positive(t, sample.Mean)
			}
		}
		switch {
		case c.Contender == "UCX tcp" && c.Figure == "one_way_8":
			assert.Equal(t, 0.5, c.Rounds[0].Median)
			assert.Equal(t, 0.6, c.Rounds[0].Mean)
		case c.Contender == "libfabric tcp":
			assert.Contains(t, c.Failure, "no such provider")
		case c.Contender == "libfabric tcp, fi_rma_bw":
			assert.Contains(t, c.Failure, "what is this?")
		}
	}
	assert.Equal(t, map[string]int{"Verbena, shared memory": 9, "Verbena, UDP": 9, "UCX posix,cma": 9, "UCX tcp": 9, "libfabric tcp": 7, "libfabric tcp, fi_rma_bw": 5}, count)
	b, err = os.ReadFile(document)
	require.NoError(t, err)
	assert.Contains(t, string(b), "| 8 B one way, polling, median, µs |")
	assert.True(t, strings.HasSuffix(string(b), result.End+"\nbehind\n"))
	assert.Contains(t, p.out.String(), "UCX_TLS=posix,cma UCX_LOG_LEVEL=error "+folder+"/ucx_perftest")
	assert.Contains(t, p.out.String(), fmt.Sprintf("failed: two processes of this machine, one_way_8 by libfabric tcp, %d of %d rounds", rounds, rounds))
}

// An interrupt ends it, and what it has started.
func TestPeersInterrupted(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux")
	}
	p := start(t, verbena(nil, "perf", "peers", "-scene", "local", "-D", "1h", "-timeout", "2h", "-verbose")...)
	p.await("-test write_lat")
	p.interrupted()
	assert.Equal(t, 130, p.cmd.ProcessState.ExitCode(), "%s", &p.out)
}
