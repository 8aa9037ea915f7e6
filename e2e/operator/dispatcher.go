package operator

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// dispatcher does the work of the programs that are stood in for. A request is the program's
// name and arguments, a line each, with an empty line at the end; the response is the exit status
// on a line, and what goes to standard error.
type dispatcher struct {
	host *Host
	ctx  context.Context

	// mu guards services, by the names of their units.
	mu       sync.Mutex
	services map[string]*service
}

// requestScript is a program that has the dispatcher do its work; its placeholder is the port.
const requestScript = `#!/bin/bash
exec 3<>/dev/tcp/127.0.0.1/%d
printf '%%s\n' "${0##*/}" "$@" "" >&3
read -r status <&3
cat <&3 >&2
exit "$status"
`

// runuser runs a command as the user of the shell.
const runuser = `#!/bin/bash
[ "$1 $3" = "-u --" ] || exit 64
shift 3
exec "$@"
`

// standIn writes the programs that are stood in for, and answers them until the test ends.
func (h *Host) standIn(t *testing.T) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.dispatcher = &dispatcher{host: h, ctx: context.WithoutCancel(t.Context()), services: map[string]*service{}}
	var answering sync.WaitGroup
	answering.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			answering.Go(func() { h.dispatcher.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		answering.Wait()
		h.dispatcher.close(t)
	})
	request := fmt.Sprintf(requestScript, listener.Addr().(*net.TCPAddr).Port)
	for name, script := range map[string]string{"apt": request, "systemctl": request, "scp": request, "runuser": runuser} {
		if err := os.WriteFile(filepath.Join(h.Dir, "bin", name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func (d *dispatcher) serve(conn net.Conn) {
	defer conn.Close()
	var words []string
	for lines := bufio.NewScanner(conn); lines.Scan() && lines.Text() != ""; {
		words = append(words, lines.Text())
	}
	if err := d.answer(words); err != nil {
		fmt.Fprintf(conn, "1\n%q: %v\n", words, err)
		return
	}
	fmt.Fprintln(conn, "0")
}

func (d *dispatcher) answer(words []string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case len(words) == 4 && words[0] == "apt" && words[1] == "install" && words[2] == "-y":
		return d.install(filepath.Join(d.host.Home(), words[3]))
	case len(words) == 3 && words[0] == "scp":
		return d.host.copyTo(words[1], words[2])
	case len(words) > 1 && words[0] == "systemctl":
		return d.control(words[1:])
	}
	return errors.New("no test stands in for this")
}
