package upgrade

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/test/integration/etcd"

	"byre/e2e/programs"
	"byre/e2e/robustness/tables"
	"byre/e2e/servers"
	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// encryption encrypts the objects of a built-in resource and of a custom one.
const encryption = `
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, foos.cr.bar.com]
  providers:
  - aescbc: {keys: [{name: key1, secret: bm90IGEgc2VjcmV0LCAzMiBieXRlcywgYSB0ZXN0Li4=}]}
`

// TestUpgrade_KeepsContents has an older program store objects of every kind, and change and delete
// some. This program must read them and their history, and a StorageVersionMigration must rewrite
// those whose storage version is another one now. Then the older program must read all again.
func TestUpgrade_KeepsContents(t *testing.T) {
	all, err := programs.Older(t.Context(), *isLongUpgrade)
	if errors.Is(err, programs.ErrNoHistory) && !*isLongUpgrade {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, older := range all {
		for _, kind := range []string{tables.SQLite, tables.Postgres} {
			t.Run(kind+" from "+name, func(t *testing.T) {
				t.Parallel()
				testContents(t, newSite(t, kind, older))
			})
		}
	}
}

// site is a database, and the files of the programs that use it in turn.
type site struct {
	dir, older, kind, endpoint, address string
}

func newSite(t *testing.T, kind, older string) *site {
	t.Helper()
	s := &site{dir: t.TempDir(), older: older, kind: kind}
	if kind == tables.Postgres {
		s.address = pgtest.DSN(t)
		s.endpoint = s.address
	} else {
		s.address = filepath.Join(s.dir, "byre.db")
		s.endpoint = (&url.URL{Scheme: "sqlite", Path: s.address}).String()
	}
	if err := os.WriteFile(filepath.Join(s.dir, "encryption.yaml"), []byte(encryption), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// serve has a program serve the database until the returned function is called, which checks that it
// has logged no error until then.
func (s *site) serve(t *testing.T, program string, args ...string) (*client, func()) {
	t.Helper()
	log := filepath.Join(s.dir, "byre.log")
	if err := os.Remove(log); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	server, err := servers.Byre{Dir: s.dir, Endpoint: s.endpoint, Program: program, Args: append([]string{
		"--encryption-provider-config", filepath.Join(s.dir, "encryption.yaml"), "--retention=720h",
		"--runtime-config=api/all=true",
		// With this one on the server itself asks LeaseCandidates whether they are there, and deletes them.
		"--feature-gates=AllAlpha=true,AllBeta=true,CoordinatedLeaderElection=false",
		// No controller changes an object, and a Pod needs none that makes its ServiceAccount.
		"--disable-admission-plugins=ServiceAccount",
	}, args...)}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Kill()
		server.Report(t)
	})
	return newClient(t, server), func() {
		t.Helper()
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range regexp.MustCompile("(?m)^E.*").FindAllString(string(text), -1) {
			t.Errorf("logged: %s", line)
		}
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
	}
}

func testContents(t *testing.T, s *site) {
	s.beginAWeekAgo(t)
	c, stop := s.serve(t, s.older, "--controllers=")
	created := create(t, c)
	awaitConditions(t, c)
	then := c.revision()
	past := c.list(created, then)
	change(t, c, created, "2")
	now := c.revision()
	want := c.list(created, now)
	stored := s.storedVersions(t, created)
	if stored[schema.GroupResource{Resource: "secrets"}] != "" ||
		stored[schema.GroupResource{Group: "cr.bar.com", Resource: "foos"}] != "" {
		t.Errorf("what must be encrypted is stored as JSON: %v", stored)
	}
	log := s.changes(t, now)
	stop()
	t.Logf("%d resources in their versions, up to revision %s", len(created), now)

	c, stop = s.serve(t, "", "--controllers=")
	served := c.resources()
	both := slices.DeleteFunc(slices.Clone(created), func(r resource) bool { return !slices.Contains(served, r) })
	mustBe(t, "after the upgrade", c.list(both, ""), want)
	mustBe(t, "at the revision of before the upgrade", c.list(both, now), want)
	mustBe(t, "at an older revision", c.list(both, then), past)
	if after := s.storedVersions(t, created); !maps.Equal(after, stored) {
		t.Errorf("the start has written objects again:\n%s", gocmp.Diff(stored, after))
	}
	if after := s.changes(t, now); len(log) == 0 || !slices.Equal(after, log) {
		t.Errorf("changes in SQL after the upgrade (-want +got):\n%s", gocmp.Diff(log, after))
	}
	expectAWeek(t, c)
	added := createNew(t, c, served, created)
	stop()

	c, stop = s.serve(t, "", "--controllers=storage-version-migrator-controller")
	migrated := migrate(t, c, s, created, stored)
	want = withoutMigrated(want, migrated)
	mustBe(t, "after the migration", withoutMigrated(c.list(both, ""), migrated), want)
	mustBe(t, "at the revision of before the migration", withoutMigrated(c.list(both, now), migrated), want)
	inNew := c.list(added, "")
	stop()

	if err := programs.RevertSchema(t.Context(), programs.Byre.Path(), s.older, s.endpoint); err != nil {
		t.Fatal(err)
	}
	c, stop = s.serve(t, s.older, "--controllers=")
	mustBe(t, "in the older program after the migration", withoutMigrated(c.list(created, ""), migrated), want)
	mustBe(t, "in the older program at an older revision", c.list(created, then), past)
	for _, r := range added {
		if _, err := c.try(http.MethodGet, r.path(""), nil); err == nil || !strings.Contains(err.Error(), "404") {
			t.Errorf("the older program serves %v: %v", r, err)
		}
	}
	change(t, c, created, "3")
	want = c.list(created, "")
	stop()

	c, stop = s.serve(t, "", "--controllers=")
	mustBe(t, "after the second upgrade", c.list(both, ""), want)
	mustBe(t, "kinds that the older program has not", c.list(added, ""), inNew)
	expectAWeek(t, c)
	stop()
}

// days is how old the oldest history is.
const days = 6

// beginAWeekAgo has the older program change an object a few times in another database, and restores
// that into this one as if the changes were days old.
func (s *site) beginAWeekAgo(t *testing.T) {
	t.Helper()
	other := *s
	other.kind, other.address = tables.SQLite, filepath.Join(s.dir, "week.db")
	other.endpoint = (&url.URL{Scheme: "sqlite", Path: other.address}).String()
	c, stop := other.serve(t, s.older, "--controllers=")
	c.do(http.MethodPost, "/api/v1/namespaces", object{"metadata": object{"name": namespace}})
	path := "/api/v1/namespaces/" + namespace + "/configmaps"
	c.do(http.MethodPost, path, object{"metadata": object{"name": "aged"}})
	for day := range days {
		c.do(http.MethodPatch, path+"/aged", object{"data": object{"day": fmt.Sprint(day)}})
	}
	stop()
	now, then := filepath.Join(s.dir, "now.backup"), filepath.Join(s.dir, "then.backup")
	s.run(t, s.older, "backup", "--endpoint", other.endpoint, now)
	makeOlder(t, now, then)
	// The older program does not read the backups of this one.
	s.run(t, programs.Byre.Path(), "restore", "--endpoint", s.endpoint, then)
	if err := programs.RevertSchema(t.Context(), programs.Byre.Path(), s.older, s.endpoint); err != nil {
		t.Fatal(err)
	}
}

func (s *site) run(t *testing.T, program string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
}

// makeOlder copies a backup and moves its changes to days ago.
func makeOlder(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	file, err := backup.Open(in)
	if err != nil {
		t.Fatal(err)
	}
	whole := file.Snapshot()
	aged := sqlstore.Snapshot{
		Header: whole.Header,
		Objects: func(yield func(*sqlstore.ObjectRow, error) bool) {
			for row, err := range whole.Objects {
				if err == nil {
					row.Time = row.Time.AddDate(0, 0, -days)
				}
				if !yield(row, err) {
					return
				}
			}
		},
		Changes: func(yield func(*sqlstore.ChangeRow, error) bool) {
			for row, err := range whole.Changes {
				if err == nil {
					row.Time = row.Time.AddDate(0, 0, -days)
				}
				if !yield(row, err) {
					return
				}
			}
		},
	}
	out, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(backup.Write(out, aged, file.Program), out.Close()); err != nil {
		t.Fatal(err)
	}
}

// expectAWeek expects the changes that are days old.
func expectAWeek(t *testing.T, c *client) {
	t.Helper()
	list := c.do(http.MethodGet,
		"/apis/history.byre.dev/v1/namespaces/"+namespace+"/changes?fieldSelector=object.name%3Daged", nil)
	items, _ := list["items"].([]any)
	for _, item := range items {
		made, err := time.Parse(time.RFC3339, item.(object)["time"].(string))
		if age := time.Since(made); err != nil || age < (days-1)*24*time.Hour {
			t.Errorf("a change is %v old, %v", age, err)
		}
	}
	if len(items) != 1+days {
		t.Errorf("%d changes are left of the week, want %d", len(items), 1+days)
	}
}

// create creates an object of each resource, and two where there may be many, and returns the resources.
func create(t *testing.T, c *client) []resource {
	t.Helper()
	for _, definition := range etcd.GetCustomResourceDefinitionData() {
		definition.APIVersion, definition.Kind = "apiextensions.k8s.io/v1", "CustomResourceDefinition"
		c.do(http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
		storetest.EventuallySucceeds(t, definition.Name, func() error {
			if _, err := c.try(http.MethodGet,
				"/apis/"+definition.Spec.Group+"/"+definition.Spec.Versions[0].Name+"/"+definition.Spec.Names.Plural,
				nil); err != nil {
				return err
			}
			// Discovery follows a little later.
			want := schema.GroupResource{Group: definition.Spec.Group, Resource: definition.Spec.Names.Plural}
			if !slices.ContainsFunc(c.resources(), func(r resource) bool { return r.GroupResource() == want }) {
				return fmt.Errorf("discovery has no %v", want)
			}
			return nil
		})
	}
	examples := c.examples()
	var created []resource
	for _, r := range c.resources() {
		if leftOut[r.GroupResource().String()] != "" {
			continue
		}
		data, ok := examples[r.GroupVersionResource]
		if !ok {
			t.Errorf("upstream has no example of %v", r)
			continue
		}
		created = append(created, r)
		c.do(http.MethodPost, r.path(namespace), example(t, data, ""))
		if r.namespaced {
			c.do(http.MethodPost, r.path(namespace), example(t, data, "gone-"))
		}
	}
	return created
}

// createNew creates objects of the resources that the older program does not serve in any version.
func createNew(t *testing.T, c *client, served, created []resource) (added []resource) {
	t.Helper()
	examples := c.examples()
	for _, r := range served {
		data, ok := examples[r.GroupVersionResource]
		isOld := func(o resource) bool { return o.GroupResource() == r.GroupResource() }
		if ok && leftOut[r.GroupResource().String()] == "" && !slices.ContainsFunc(created, isOld) {
			c.do(http.MethodPost, r.path(namespace), example(t, data, ""))
			added = append(added, r)
		}
	}
	t.Logf("the older program has not: %v", added)
	return added
}

// awaitConditions waits until the server itself has written what it thinks of objects.
func awaitConditions(t *testing.T, c *client) {
	t.Helper()
	for _, path := range []string{
		"/apis/apiregistration.k8s.io/v1/apiservices", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		"/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
	} {
		storetest.EventuallySucceeds(t, path, func() error {
			list, err := c.try(http.MethodGet, path+"?labelSelector="+label, nil)
			if err != nil {
				return err
			}
			for _, item := range list["items"].([]any) {
				if status, _ := item.(object)["status"].(object); status["conditions"] == nil {
					return fmt.Errorf("%s has no condition", key(item.(object)))
				}
			}
			return nil
		})
	}
}

// change updates each object, but deletes the second ones.
func change(t *testing.T, c *client, resources []resource, round string) {
	t.Helper()
	all := c.list(resources, "")
	for _, r := range resources {
		for _, o := range all[r.GroupVersionResource] {
			name := metadata(o)["name"].(string)
			if r.Version == "v1" && r.Resource == "podcertificaterequests" && strings.HasSuffix(name, "req-1") {
				continue // upstream's v1 loses the key that v1beta1 has, and then refuses each update: it is immutable
			}
			path := r.path(namespace) + "/" + name
			if !strings.HasPrefix(name, "gone-") {
				c.do(http.MethodPatch, path,
					object{"metadata": object{"labels": object{label: round}, "annotations": object{r.Version: round}}})
				continue
			}
			// The other versions of the resource have listed it too.
			if _, err := c.try(http.MethodDelete, path+"?gracePeriodSeconds=0", nil); err != nil &&
				!strings.Contains(err.Error(), "404") {
				t.Fatal(err)
			}
		}
	}
}

// mustBe compares the objects of the resources that got has.
func mustBe(t *testing.T, what string, got, want state) {
	t.Helper()
	for r, objects := range got {
		if diff := gocmp.Diff(want[r], objects); diff != "" {
			t.Errorf("%s, %v (-want +got):\n%s", what, r, diff)
		}
	}
}
