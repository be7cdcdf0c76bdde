package main

import (
	"bytes"
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
)

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		tool.Remove()
		os.Exit(code)
	}))
}

func TestRun(t *testing.T) {
	for _, c := range []struct {
		args     []string
		code     int
		out, err string
	}{
		{nil, exit.Usage, "", "receive"},
		{[]string{"help"}, 0, "ping", ""},
		{[]string{"version"}, 0, "verbena ", ""},
		{[]string{"dance"}, exit.Usage, "", `no command "dance"`},
		{[]string{"send"}, exit.Usage, "", "give the files to send"},
		{[]string{"receive", "-h"}, 0, "", "-existing"},
		{[]string{"perf", "-h"}, 0, "", "-tx-depth"},
		{[]string{"analyse", "-h"}, 0, "", "-json"},
		{[]string{"run", "-h"}, 0, "", "-faults"},
	} {
		var out, err bytes.Buffer
		assert.Equal(t, c.code, run(context.Background(), c.args, &out, &err), c.args)
		assert.Contains(t, out.String(), c.out)
		assert.Contains(t, err.String(), c.err)
	}
}
