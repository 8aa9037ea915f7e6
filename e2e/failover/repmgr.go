package failover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// repmgrTimeout is how long repmgrd takes to notice that a primary is lost (monitor_interval_secs), to
// try it again (reconnect_attempts times reconnect_interval and the connect_timeout of conninfo), and to
// choose another one.
const repmgrTimeout = 20 * time.Second

// repmgrNode is a server with repmgrd.
type repmgrNode struct {
	*node
	cluster *cluster
	// pipe tells the service manager what to do; bin is the folder of PostgreSQL's programs.
	data, config, pipe, bin string
}

// repmgrService is the service manager of a node: it starts and stops PostgreSQL when its pipe says so.
// $1 is the folder of the data, $2 the pipe, $3 the action that it begins with, $4 the server's program, and $5 the
// port, which is in no file: pg_rewind copies those of the other server.
const repmgrService = `
pg_ctl -w -D "$1" -p "$4" -o "-p $5" "$3" || true
while read -r action <"$2"; do pg_ctl -w -D "$1" -p "$4" -o "-p $5" $action || true; done`

// newRepmgr starts repmgr with three servers, which byre's endpoint names.
func newRepmgr(s *site, isSynchronous bool) *cluster {
	s.Helper()
	c := &cluster{site: s, timeout: repmgrTimeout, isSynchronous: isSynchronous, leavesOld: true}
	s.script("ssh", `while [ "${1#-}" != "$1" ]; do case $1 in -o) shift 2 ;; *) shift ;; esac; done
shift
exec sh -c "$*"`)
	s.scriptTurnOff()
	var nodes []*repmgrNode
	var addresses []string
	for i, name := range []string{"db1", "db2", "db3"} {
		config := filepath.Join(s.dir, name+".conf")
		n := &repmgrNode{node: s.newNode(name), cluster: c, pipe: filepath.Join(s.dir, name+".service")}
		n.data, n.bin = n.addHost(s)
		if err := errors.Join(syscall.Mkfifo(n.pipe, 0o600), s.own(n.pipe)); err != nil {
			s.Fatal(err)
		}
		promote := s.script("promote-"+name, s.settings("/usr/local/bin/fence-and-promote",
			"host=db1.example.com port=5432", n.host(), "/etc/repmgr.conf", config))
		n.config = s.write(name+".conf", s.settings("/etc/repmgr.conf",
			"node_id=1", fmt.Sprintf("node_id=%d", i+1), "node_name='db1'", "node_name='"+name+"'",
			"host=db1.example.com port=5432", n.host(),
			"/var/lib/postgresql/15/byre", n.data, "/usr/lib/postgresql/15/bin", n.bin,
			"sudo systemctl start postgresql@15-byre", "echo start >"+n.pipe,
			"sudo systemctl stop postgresql@15-byre", "echo -m fast stop >"+n.pipe,
			"/usr/local/bin/fence-and-promote", promote, "/etc/repmgr.conf", config))
		n.start = n.run
		if err := n.make(nodes); err != nil {
			s.Fatal(err)
		}
		nodes, c.nodes, addresses = append(nodes, n), append(c.nodes, n.node), append(addresses, n.address())
	}
	c.endpoint = dsn(serverRole, serverRole, "", addresses...)
	c.switchover = func(ctx context.Context, primary *node) error {
		for _, n := range nodes {
			if n.node != primary {
				_, err := s.run(ctx, "repmgr", "-f", n.config, "standby", "switchover", "--siblings-follow")
				return err
			}
		}
		return nil
	}
	return c
}

// scriptTurnOff writes the program turn-off, which ends all processes of a node's server at once, also those
// that are stopped.
func (s *site) scriptTurnOff() {
	s.script("turn-off", fmt.Sprintf(`pid=$(head -1 %s/$1/postmaster.pid)
pkill -KILL -P "$pid" || true
kill -KILL "$pid" || true`, s.dir))
}

// script writes a program into the folder of the programs' PATH and returns its path.
func (s *site) script(name, text string) string {
	path := s.write(name, "#!/bin/sh\n"+text+"\n")
	if err := os.Chmod(path, 0o700); err != nil { //nolint:gosec // a program
		s.Fatal(err)
	}
	return path
}

// host is the node's address in a connection string.
func (n *node) host() string { return "host=127.0.0.1 port=" + n.port }

// make makes the data of the server, starts it and registers it. others are those that run.
func (n *repmgrNode) make(others []*repmgrNode) error {
	ctx, s := n.cluster.Context(), n.cluster.site
	if len(others) > 0 {
		first := others[0]
		clone := s.settings("On the other servers", "-h db1.example.com -p 5432", "-h 127.0.0.1 -p "+first.port,
			"/etc/repmgr.conf", n.config)
		if err := s.runScript(ctx, clone); err != nil {
			return err
		}
		if err := n.resume(); err != nil {
			return err
		}
		return n.retry("On the other servers: when PostgreSQL runs", "/etc/repmgr.conf", n.config)
	}
	replace := []string{"/var/lib/postgresql/15/byre", n.data, "listen_addresses = '*'",
		"listen_addresses = '127.0.0.1'\nunix_socket_directories = '" + s.dir + "'",
		"10.0.0.0/8", "127.0.0.1/32", "scram-sha-256", "trust"}
	if !n.cluster.isSynchronous {
		replace = append(replace, "'ANY 1 (db1, db2, db3)'", "''")
	}
	if err := s.runScript(ctx, s.settings("On db1: the first server", replace...)); err != nil {
		return err
	}
	if err := n.resume(); err != nil {
		return err
	}
	return n.retry("On db1: when PostgreSQL runs", "host=db1.example.com port=5432", n.host(), "/etc/repmgr.conf",
		n.config)
}

// retry runs a script of the page when the server runs.
func (n *repmgrNode) retry(title string, replace ...string) error {
	if err := n.cluster.awaitAnswer(n.node); err != nil {
		return err
	}
	return n.cluster.runScript(n.cluster.Context(), n.cluster.settings(title, replace...))
}

// run starts the server and repmgrd. If another node is the primary by now, the server follows that one.
func (n *repmgrNode) run() (*process, error) {
	begin, first := "", "start"
	for _, other := range n.cluster.nodes {
		if s, err := other.status(n.cluster.Context()); other != n.node && err == nil && s.isPrimary && n.process != nil {
			first = "status" // the rejoin starts the server
			begin = n.cluster.settings("On an old primary", "/var/lib/postgresql/15/byre", n.data, "/etc/repmgr.conf", n.config,
				"host=db2.example.com port=5432", other.host())
		}
	}
	script := fmt.Sprintf(`sh -c '%s' service %s %s %s %s/postgres %s &
%s
until psql "%s user=repmgr dbname=repmgr" -Atc "SELECT node_name FROM nodes" 2>/dev/null | grep -qx %s; do sleep 0.3; done
repmgrd -f %s --daemonize=false --no-pid-file
wait`, repmgrService, n.data, n.pipe, first, n.bin, n.port, begin, n.host(), n.name, n.config)
	return n.cluster.site.start(n.name, "/bin/sh", "-c", script)
}

// awaitAnswer waits until a server answers.
func (c *cluster) awaitAnswer(n *node) error {
	return c.await(c.Context(), n.name+" answers", func() (bool, error) {
		_, err := n.status(c.Context())
		return err == nil, err
	})
}
