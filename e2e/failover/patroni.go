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

	"byre/e2e/programs"
)

// startEtcd starts an etcd of one member and returns the address for clients.
func (s *site) startEtcd() string {
	s.Helper()
	client, peer := "127.0.0.1:"+s.takePort(), "http://127.0.0.1:"+s.takePort()
	s.mustStart("etcd", programs.Etcd.Path(), "--data-dir", s.mkdir("etcd"),
		"--listen-client-urls", "http://"+client, "--advertise-client-urls", "http://"+client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	return client
}

// patroniTimeout is ttl in the settings, and 2 seconds: when the lease has ended, the members compare
// themselves, and one is promoted.
const patroniTimeout = (20 + 2) * time.Second

// patroniNode is a node and the address of its manager's REST API.
type patroniNode struct {
	*node
	api, config string
}

// newPatroni starts three nodes with Patroni. byre's endpoint names all of them.
func newPatroni(s *site, isSynchronous bool) *cluster {
	s.Helper()
	c, _ := newPatroniNodes(s, isSynchronous)
	var addresses []string
	for _, n := range c.nodes {
		addresses = append(addresses, n.address())
	}
	c.endpoint = dsn(serverRole, serverRole, "", addresses...)
	return c
}

// newPatroniBehindHAProxy is newPatroni with an HAProxy, which byre's endpoint names.
func newPatroniBehindHAProxy(s *site, isSynchronous bool) *cluster {
	s.Helper()
	c, nodes := newPatroniNodes(s, isSynchronous)
	address := "127.0.0.1:" + s.takePort()
	replace := []string{"bind *:5432", "bind " + address}
	for i, n := range nodes {
		name := "db" + string(rune('1'+i))
		_, port, err := net.SplitHostPort(n.api)
		if err != nil {
			s.Fatal(err)
		}
		replace = append(replace, name+".example.com:5432 check port 8008", n.address()+" check port "+port)
	}
	path := s.write("haproxy.cfg", s.settings("/etc/haproxy/haproxy.cfg", replace...))
	s.mustStart("haproxy", s.program("haproxy"), "-db", "-f", path)
	c.endpoint = dsn(serverRole, serverRole, "", address)
	return c
}

// newPatroniBehindPgBouncer is newPatroniBehindHAProxy with a PgBouncer before the HAProxy.
func newPatroniBehindPgBouncer(s *site, isSynchronous bool) *cluster {
	s.Helper()
	c := newPatroniBehindHAProxy(s, isSynchronous)
	behind, err := pgx.ParseConfig(c.endpoint)
	if err != nil {
		s.Fatal(err)
	}
	port := s.takePort()
	path := s.write("pgbouncer.ini", s.settings("/etc/pgbouncer/pgbouncer.ini",
		"host=haproxy.example.com port=5432", fmt.Sprintf("host=%s port=%d", behind.Host, behind.Port),
		"listen_port = 6432", "listen_port = "+port, "scram-sha-256", "trust",
		"/etc/pgbouncer/userlist.txt", s.write("userlist.txt", `"byre" "PASSWORD"`+"\n")))
	s.mustStart("pgbouncer", s.program("pgbouncer"), path)
	c.endpoint = dsn(serverRole, serverRole, "", "127.0.0.1:"+port)
	return c
}

func newPatroniNodes(s *site, isSynchronous bool) (*cluster, []*patroniNode) {
	s.Helper()
	c := &cluster{site: s, timeout: patroniTimeout, isSynchronous: isSynchronous}
	etcd := s.startEtcd()
	var nodes []*patroniNode
	for _, name := range []string{"db1", "db2", "db3"} {
		n := &patroniNode{node: s.newProxiedNode(name), api: "127.0.0.1:" + s.takePort()}
		host, port := n.proxyAddress()
		replace := []string{
			"name: db1", "name: " + name,
			"listen: db1.example.com:8008", "listen: " + n.api,
			"connect_address: db1.example.com:8008", "connect_address: " + n.api,
			"listen: db1.example.com:5432", "listen: " + n.address(),
			"connect_address: db1.example.com:5432", "connect_address: " + net.JoinHostPort(host, port),
			"etcd1.example.com:2379,etcd2.example.com:2379,etcd3.example.com:2379", etcd,
			"/var/lib/postgresql/15/byre", s.mkdir(name),
			"/usr/lib/postgresql/15/bin", s.bin(),
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
	if err := c.await(s.Context(), "Patroni's API answers", func() (bool, error) { return answers(s.Context(), nodes) }); err != nil {
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
