package e2e

import (
	"os"
	"slices"
	"testing"

	"byre/e2e/servers"
)

// TestAccess_OfEveryKind starts byre with the flags and files of docs/operations/security.md, all
// sections at once, and uses every authenticator, authorizer and admission plugin that they
// configure.
func TestAccess_OfEveryKind(t *testing.T) {
	t.Parallel()
	for _, name := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			site := newSite(t)
			db := openDatabase(t, name)
			testAccess(t, site, startByre(t, db, site.guarded(t)...), db)
		})
	}
}

// TestAccess_AgainstStock gives the same flags and files to a stock kube-apiserver.
func TestAccess_AgainstStock(t *testing.T) {
	t.Parallel()
	if os.Getenv("E2E_STOCK") == "" {
		t.Skip("set E2E_STOCK=1 to try them on a stock kube-apiserver")
	}
	site := newSite(t)
	s, err := servers.Stock{Dir: t.TempDir(), Args: site.guarded(t)}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	testAccess(t, site, s, database{name: "stock"})
}

// guarded are the flags of all sections about access.
func (s *site) guarded(t *testing.T) []string {
	t.Helper()
	return slices.Concat(
		s.follow(t, "Authentication", 0),
		s.follow(t, "Authorization", 1),
		s.follow(t, "Admission", 0),
		s.follow(t, "Audit", 0),
		[]string{"--audit-log-maxsize=1"}, // so that it need not be written full
	)
}

func testAccess(t *testing.T, site *site, s *servers.Server, db database) {
	t.Run("whoami", func(t *testing.T) { testWhoami(t, site, s) })
	t.Run("strangers", func(t *testing.T) { testStrangers(t, site, s) })
	t.Run("anonymous", func(t *testing.T) { testAnonymous(t, s) })
	t.Run("issuer", func(t *testing.T) { testIssuer(t, s, issuerOf(db)) })
	t.Run("admission", func(t *testing.T) { testAdmissionConfig(t, site, s) })
	t.Run("audit", func(t *testing.T) { testAudit(t, site, s, db) })
	t.Run("audit log rotation", func(t *testing.T) { testRotation(t, site, s) })
	t.Run("authorization", func(t *testing.T) { testAuthorizationConfig(t, site, s) })
	t.Run("reloads", func(t *testing.T) { testReloads(t, site, s) })
}

// issuerOf is the first --service-account-issuer, which for a stock server is that
// of every stock server here.
func issuerOf(db database) string {
	if db.name == "stock" {
		return "https://kubernetes.default.svc.cluster.local"
	}
	return "https://byre.example.com"
}
