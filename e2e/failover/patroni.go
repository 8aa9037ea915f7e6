package failover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
)

// patroniTimeout is ttl in the settings, and 2 seconds: when the lease has ended, the members compare
// themselves, and one is promoted.
const patroniTimeout = (20 + 2) * time.Second

// patroniNode is a node and the address of its manager's REST API.
type patroniNode struct {
	*node
	api, config string
}

// newPatroni starts three nodes with Patroni and an etcd of one member. byre's endpoint names all of them.
func newPatroni(s *site, isSynchronous bool) *cluster {
	s.Helper()
	c, _ := newPatroniNodes(s, isSynchronous, false)
	c.nameAll()
	return c
}

// newPatroniWhole is newPatroni with an etcd of three members. Each server has a small disk and a clock of its own.
func newPatroniWhole(s *site, isSynchronous bool) *cluster {
	s.Helper()
	c, _ := newPatroniNodes(s, isSynchronous, true)
	c.nameAll()
	return c
}

// nameAll has the endpoint name all servers.
func (c *cluster) nameAll() {
	var addresses []string
	for _, n := range c.nodes {
		addresses = append(addresses, n.address())
	}
	c.endpoint = dsn(serverRole, serverRole, "", addresses...)
}

// newPatroniBehindHAProxy is newPatroni with an HAProxy, which byre's endpoint names.
func newPatroniBehindHAProxy(s *site, isSynchronous bool) *cluster {
	s.Helper()
	c, nodes := newPatroniNodes(s, isSynchronous, false)
	c.startHAProxy(nodes, (*node).address)
	return c
}

// startHAProxy starts an HAProxy, which leads to an address of the primary's host and which byre's endpoint names.
func (c *cluster) startHAProxy(nodes []*patroniNode, address func(*node) string) {
	c.Helper()
	listen := "127.0.0.1:" + c.takePort()
	replace := []string{"bind *:5432", "bind " + listen}
	for i, n := range nodes {
		name := "db" + string(rune('1'+i))
		_, port, err := net.SplitHostPort(n.api)
		if err != nil {
			c.Fatal(err)
		}
		replace = append(replace, name+".example.com:5432 check port 8008", address(n.node)+" check port "+port)
	}
	path := c.write("haproxy.cfg", c.settings("/etc/haproxy/haproxy.cfg", replace...))
	c.mustStart("haproxy", c.program("haproxy"), "-db", "-f", path)
	c.endpoint = dsn(serverRole, serverRole, "", listen)
}

// newPatroniBehindPgBouncer is newPatroniBehindHAProxy with a PgBouncer before the HAProxy.
func newPatroniBehindPgBouncer(s *site, isSynchronous bool) *cluster {
	s.Helper()
	c := newPatroniBehindHAProxy(s, isSynchronous)
	behind, err := pgx.ParseConfig(c.endpoint)
	if err != nil {
		s.Fatal(err)
	}
	address := s.startPgBouncer("pgbouncer", fmt.Sprintf("host=%s port=%d", behind.Host, behind.Port))
	c.endpoint = dsn(serverRole, serverRole, "", address)
	return c
}

// newPatroniBeforePgBouncers returns newPatroniBehindHAProxy with a PgBouncer on the host of each server, to which
// the HAProxy leads. mode is its pool_mode.
func newPatroniBeforePgBouncers(mode string) func(s *site, isSynchronous bool) *cluster {
	return func(s *site, isSynchronous bool) *cluster {
		s.Helper()
		c, nodes := newPatroniNodes(s, isSynchronous, false)
		c.startHAProxy(nodes, func(n *node) string {
			return s.startPgBouncer("pgbouncer-"+n.name, n.host(), "pool_mode = transaction", "pool_mode = "+mode)
		})
		return c
	}
}

// startPgBouncer starts a PgBouncer before a server, host=... port=..., and returns its address.
func (s *site) startPgBouncer(name, server string, replace ...string) string {
	s.Helper()
	port := s.takePort()
	path := s.write(name+".ini", s.settings("/etc/pgbouncer/pgbouncer.ini", append(replace,
		"host=haproxy.example.com port=5432", server,
		"listen_port = 6432", "listen_port = "+port, "scram-sha-256", "trust",
		"/etc/pgbouncer/userlist.txt", s.write(name+".txt", `"byre" "PASSWORD"`+"\n"))...))
	// Version 1.18 ends by itself at times: "bad client state".
	s.mustStart(name, "/bin/sh", "-c", `while :; do "$1" "$2"; sleep 1; done`, name, s.program("pgbouncer"), path)
	return "127.0.0.1:" + port
}

// newPatroniNodes starts three nodes and an etcd of one member. isWhole adds what newPatroniWhole has.
func newPatroniNodes(s *site, isSynchronous, isWhole bool) (*cluster, []*patroniNode) {
	s.Helper()
	members := 1
	if isWhole {
		members = 3
	}
	c := &cluster{site: s, timeout: patroniTimeout, isSynchronous: isSynchronous, etcd: s.startEtcd(members)}
	var nodes []*patroniNode
	for _, name := range []string{"db1", "db2", "db3"} {
		n := &patroniNode{node: s.newProxiedNode(name), api: "127.0.0.1:" + s.takePort()}
		n.store = c.etcd.links()
		data, bin := s.dir+"/"+name, s.bin()
		if isWhole {
			data, bin = n.addHost(s)
		}
		host, port := n.proxyAddress()
		replace := []string{
			"name: db1", "name: " + name,
			"listen: db1.example.com:8008", "listen: " + n.api,
			"connect_address: db1.example.com:8008", "connect_address: " + n.api,
			"listen: db1.example.com:5432", "listen: " + n.address(),
			"connect_address: db1.example.com:5432", "connect_address: " + net.JoinHostPort(host, port),
			// Otherwise Patroni asks etcd for the addresses of its members, and passes by the links.
			"hosts: etcd1.example.com:2379,etcd2.example.com:2379,etcd3.example.com:2379",
			"use_proxies: true\n  hosts: " + n.store.addresses(),
			"/var/lib/postgresql/15/byre", data,
			"/usr/lib/postgresql/15/bin", bin,
			"/var/run/postgresql", s.dir,
			"10.0.0.0/8", "127.0.0.1/32",
			"scram-sha-256", "trust",
		}
		if !isSynchronous {
			replace = append(replace, "synchronous_mode: true", "synchronous_mode: false")
		}
		n.config = s.write(name+".yml", s.settings("/etc/patroni/config.yml", replace...))
		n.start = func() (*process, error) { return s.start(name, s.program("patroni"), n.config) }
		nodes, c.nodes = append(nodes, n), append(c.nodes, n.node)
	}
	c.isSteady = func(ctx context.Context) (bool, error) { return hasSynchronousMember(ctx, nodes[0].api, isSynchronous) }
	c.switchover = func(ctx context.Context, primary *node) error {
		_, err := s.run(ctx, "patronictl", "-c", nodes[0].config, "switchover", "byre", "--master", primary.name, "--force")
		return err
	}
	s.startAll(c.nodes)
	if err := c.await(s.Context(), "Patroni's API answers", func() (bool, error) {
		return answers(s.Context(), nodes)
	}); err != nil {
		s.Fatal(err)
	}
	return c, nodes
}

// answers reports whether every node is a member that runs.
func answers(ctx context.Context, nodes []*patroniNode) (bool, error) {
	for _, n := range nodes {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.api+"/health", nil)
		if err != nil {
			return false, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false, err
		}
		if err := response.Body.Close(); err != nil {
			return false, err
		}
		if response.StatusCode != http.StatusOK {
			return false, errors.New(n.name + ": " + response.Status)
		}
	}
	return true, nil
}

// hasSynchronousMember reports whether Patroni knows as many synchronous standbys as it should: it promotes
// no other one, and learns of one after PostgreSQL does.
func hasSynchronousMember(ctx context.Context, api string, isSynchronous bool) (bool, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+api+"/cluster", nil)
	if err != nil {
		return false, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return bytes.Contains(text, []byte(`"sync_standby"`)) == isSynchronous, err
}
