package failover

import (
	"fmt"
	"strings"

	"byre/e2e/programs"
)

// etcd is Patroni's store: members that can be killed and started again.
type etcd struct {
	*site
	members []*member
}

// member is a member of etcd.
type member struct {
	*etcd
	name, client, peer, dir string
	process                 *process
}

// startEtcd starts an etcd of some members.
func (s *site) startEtcd(members int) *etcd {
	s.Helper()
	e := &etcd{site: s}
	for i := range members {
		name := fmt.Sprintf("etcd%d", i+1)
		e.members = append(e.members, &member{etcd: e, name: name, dir: s.mkdir(name),
			client: "127.0.0.1:" + s.takePort(), peer: "http://127.0.0.1:" + s.takePort()})
	}
	for _, m := range e.members {
		if err := m.start(); err != nil {
			s.Fatal(err)
		}
	}
	return e
}

// start starts the member, also again after it was killed.
func (m *member) start() (err error) {
	var peers []string
	for _, other := range m.members {
		peers = append(peers, other.name+"="+other.peer)
	}
	m.process, err = m.site.start(m.name, programs.Etcd.Path(), "--name", m.name, "--data-dir", m.dir,
		"--listen-client-urls", "http://"+m.client, "--advertise-client-urls", "http://"+m.client,
		"--listen-peer-urls", m.peer, "--initial-advertise-peer-urls", m.peer, "--initial-cluster", strings.Join(peers, ","))
	return err
}

// links makes a link to each member.
func (e *etcd) links() (all links) {
	for _, m := range e.members {
		all = append(all, e.newLink(m.client))
	}
	return all
}
