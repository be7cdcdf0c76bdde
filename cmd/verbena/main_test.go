package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
		{[]string{"receive", "-h"}, 0, "-existing refuse|skip|overwrite", ""},
		{[]string{"perf", "-h"}, 0, "-t, -tx-depth number", ""},
		{[]string{"analyse", "-h"}, 0, "-json", ""},
		{[]string{"run", "-h"}, 0, "-faults", ""},
		{[]string{"help", "dance"}, exit.Usage, "", `no command "dance"`},
	} {
		var out, err bytes.Buffer
		assert.Equal(t, c.code, run(context.Background(), c.args, &out, &err), c.args)
		assert.Contains(t, out.String(), c.out)
		assert.Contains(t, err.String(), c.err)
	}
}

// help COMMAND and COMMAND -h are the same, and name the types of values, not their defaults.
func TestHelp(t *testing.T) {
	types := strings.Fields("number text duration bytes bytes,... file folder device address host:port port index name rate MiB secret exponent options number,... test,... refuse|skip|overwrite")
	for _, c := range commands() {
		var help, flag, err bytes.Buffer
		require.Equal(t, exit.OK, run(context.Background(), []string{"help", c.name()}, &help, &err))
		require.Equal(t, exit.OK, run(context.Background(), []string{c.name(), "-h"}, &flag, &err))
		assert.Equal(t, flag.String(), help.String())
		assert.Contains(t, help.String(), "usage: verbena "+c.name())
		assert.Empty(t, err.String())
		for _, f := range c.page.List() {
			if f.Type != "" {
				assert.Contains(t, types, f.Type, "%s -%s", c.name(), f.Names[0])
			}
		}
	}
}
