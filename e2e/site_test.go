package e2e

import (
	"encoding/base64"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"byre/e2e/peers"
	"byre/e2e/servers"
)

// site is a machine set up as docs/operations/security.md says, with all the servers to which the
// files of that page refer.
type site struct {
	dir    string // in place of /etc/byre and /var/log/byre
	guide  map[string]*chapter
	here   *strings.Replacer // replaces the page's addresses and keys by those of this site
	issuer *peers.Issuer
	hooks  *peers.Hooks
	keeper *peers.Keeper
	// users and proxies sign client certificates, web those of the peers.
	users, proxies, web *peers.Authority
}

// The keys of the site's encryption.
var (
	firstKey  = base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))
	secondKey = base64.StdEncoding.EncodeToString([]byte("fedcba9876543210fedcba9876543210"))
)

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{guide: readGuide(t)}
	var err error
	// Not t.TempDir: a socket's path is at most 107 bytes long.
	if s.dir, err = os.MkdirTemp("", "site"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(s.dir) })
	s.users, s.proxies, s.web = newAuthority(t, "users"), newAuthority(t, "proxies"), newAuthority(t, "web")
	if s.issuer, err = peers.NewIssuer(s.web); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.issuer.Close)
	s.hooks = peers.NewHooks(s.web)
	t.Cleanup(s.hooks.Close)
	if s.keeper, err = peers.NewKeeper(filepath.Join(s.dir, "kms.sock")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.keeper.Close(); err != nil {
			t.Error(err)
		}
	})
	for name, ca := range map[string]*peers.Authority{"users": s.users, "proxies": s.proxies, "hooks": s.web,
		"issuer": s.web} {
		s.write(t, name+"-ca.crt", string(ca.PEM))
	}
	cert, key := clientCertificate(t, s.proxies, "front-proxy")
	s.write(t, "front-proxy.crt", string(cert))
	s.write(t, "front-proxy.key", string(key))
	hooks, err := url.Parse(s.hooks.URL)
	if err != nil {
		t.Fatal(err)
	}
	s.here = strings.NewReplacer(
		"/etc/byre/", s.dir+"/",
		"/var/log/byre/", s.dir+"/",
		"/run/byre/", s.dir+"/",
		"https://issuer.example.com", s.issuer.URL,
		"https://hooks.example.com", s.hooks.URL,
		"hooks.example.com", hooks.Host,
		"ISSUER_CA_PEM", strconv.Quote(string(s.web.PEM)),
		"A_LONG_RANDOM_STRING", servers.AliceToken,
		"TOKEN_FOR_HOOKS", "for-hooks",
		"KEY_1", firstKey,
	)
	return s
}

func newAuthority(t *testing.T, name string) *peers.Authority {
	t.Helper()
	a, err := peers.NewAuthority(name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// follow writes the files of a section and returns the flags of its n-th command.
func (s *site) follow(t *testing.T, section string, n int) []string {
	t.Helper()
	c := s.guide[section]
	if c == nil || n >= len(c.commands) {
		t.Fatalf("docs/operations/security.md has no command %d in a section %q", n, section)
	}
	for path, text := range c.files {
		path, text := s.here.Replace(path), s.here.Replace(text)
		if filepath.Base(path) == "tokens.csv" {
			text += servers.AdminToken + ",admin,admin-uid,system:masters\n"
		}
		s.write(t, filepath.Base(path), text)
	}
	var flags []string
	for _, flag := range c.commands[n] {
		flags = append(flags, s.here.Replace(flag))
	}
	return flags
}

// write replaces a file atomically, as one should a file that a server reloads.
func (s *site) write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}

// edit changes a file that a server reloads.
func (s *site) edit(t *testing.T, name string, fromTo ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fromTo); i += 2 {
		if !strings.Contains(string(text), fromTo[i]) {
			t.Fatalf("%s has no %q", name, fromTo[i])
		}
	}
	s.write(t, name, strings.NewReplacer(fromTo...).Replace(string(text)))
}

// kubeconfig makes one for a user who is known by these credentials.
func kubeconfig(t *testing.T, server, ca string, user *api.AuthInfo) string {
	t.Helper()
	config := api.NewConfig()
	config.Clusters["c"] = &api.Cluster{Server: server, CertificateAuthority: ca}
	config.AuthInfos["u"] = user
	config.Contexts["c"] = &api.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "c"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func tokenUser(token string) *api.AuthInfo { return &api.AuthInfo{Token: token} }
