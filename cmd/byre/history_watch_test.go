package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"byre/apiserver/history"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// changeStream has the events of a watch as they come.
type changeStream struct {
	mu     sync.Mutex
	events []metav1.WatchEvent
	ended  bool
	stop   context.CancelFunc
}

// watch begins a watch of a user, of a server; it ends with the test.
func (h *chronicle) watch(config *rest.Config, user, path, accept string) *changeStream {
	h.Helper()
	config = rest.CopyConfig(config)
	config.Impersonate.UserName = user
	client, err := rest.HTTPClientFor(config)
	h.must(err)
	ctx, cancel := context.WithCancel(h.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path, nil)
	h.must(err)
	request.Header.Set("Accept", accept)
	response, err := client.Do(request)
	h.must(err)
	if response.StatusCode != http.StatusOK {
		h.Errorf("%s: %s", path, response.Status)
	}
	s := &changeStream{stop: cancel}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer response.Body.Close()
		for events := json.NewDecoder(response.Body); ; {
			var event metav1.WatchEvent
			err := events.Decode(&event)
			s.mu.Lock()
			s.ended = err != nil
			if err == nil {
				s.events = append(s.events, event)
			}
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	h.Cleanup(func() {
		cancel()
		<-done
	})
	return s
}

// received returns the JSON of what the watch has sent, and the changes.
func (s *changeStream) received() (items []history.Change, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, event := range s.events {
		text += event.Type + string(event.Object.Raw)
		var item history.Change
		if event.Type == "ADDED" && json.Unmarshal(event.Object.Raw, &item) == nil {
			item.TypeMeta = metav1.TypeMeta{} // the items of a list have none
			items = append(items, item)
		}
	}
	return items, text
}

func (s *changeStream) hasEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

func (s *changeStream) awaits(t *testing.T, text string) {
	t.Helper()
	storetest.Eventually(t, "the watch sends "+text, func() bool {
		_, all := s.received()
		return strings.Contains(all, text)
	})
}

// after is the part of a list after a revision.
func after(list history.ChangeList, revision int64) []history.Change {
	return slices.DeleteFunc(slices.Clone(list.Items), func(c history.Change) bool { return c.Revision <= revision })
}

// expectItems expects items of a watch, and nothing else.
func (h *chronicle) expectItems(s *changeStream, want []history.Change) {
	h.Helper()
	storetest.Eventually(h.T, fmt.Sprintf("the watch has %d changes", len(want)), func() bool {
		items, _ := s.received()
		return len(items) >= len(want)
	})
	items, _ := s.received()
	got, _ := json.Marshal(items)
	if expected, _ := json.Marshal(want); !bytes.Equal(got, expected) {
		h.Errorf("the watch has sent\n%s\nwant\n%s", got, expected)
	}
}

// A watch sends what a list has, as it is made by any server of the database, and resumes.
func TestHistory_WatchSendsWhatAListHas(t *testing.T) {
	t.Parallel()
	for name := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, other := newReplicas(t, name)
			h.makeNamespace("shop")
			h.write("shop", "config-0", "first")
			list, _ := h.list("", inShop)
			begun := list.Items[len(list.Items)-1].Revision
			here := h.watch(h.config, "", inShop+"?watch=1&resourceVersion="+list.ResourceVersion, "application/json")
			there := h.watch(other, "", inShop+"?watch=1&resourceVersion="+list.ResourceVersion, "application/json")
			whole := h.watch(other, "",
				inShop+"?watch=1&allowWatchBookmarks=1&sendInitialEvents=1&resourceVersionMatch=NotOlderThan", "application/json")
			whole.awaits(t, `"k8s.io/initial-events-end":"true"`)
			const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
			table := h.watch(h.config, "",
				inShop+"?watch=1&fieldSelector=object.name%3Dconfig-1&resourceVersion="+list.ResourceVersion, asTable)
			log := command(t, t.TempDir(), "log", "--follow", "-n", "shop", "--kubeconfig",
				filepath.Join(h.dir, "admin.kubeconfig"))
			log.awaitOutput(t, "configmaps/config-0")
			var writing sync.WaitGroup
			for i := range 3 {
				writing.Go(func() {
					for n := range 10 {
						h.write("shop", fmt.Sprint("config-", i), fmt.Sprint(n))
					}
				})
			}
			writing.Wait()
			list, _ = h.list("", inShop)
			news := after(list, begun)
			if len(news) != 30 {
				t.Fatalf("%d changes", len(news))
			}
			h.expectItems(here, news)
			h.expectItems(there, news)
			h.expectItems(whole, list.Items)
			resumed := h.watch(other, "", inShop+"?watch=1&resourceVersion="+news[9].ResourceVersion, "application/json")
			h.expectItems(resumed, news[10:])
			table.awaits(t, `data.key: \"8\" → \"9\"`)
			if _, text := table.received(); !strings.Contains(text, `"name":"Revision"`) || strings.Contains(text, "config-2") {
				t.Errorf("a table: %s", text)
			}
			log.awaitOutput(t, news[29].Name+" ")
			if err := log.cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			if status := log.wait(t); status != 0 || strings.Count(log.log.String(), "\n") != 1+len(list.Items) {
				t.Errorf("byre log --follow: status %d, %s", status, log.log)
			}
			h.expectExpiredWatch(news[0])
		})
	}
}

// newReplicas starts a server, and on PostgreSQL a second one, whose configuration is other.
func newReplicas(t *testing.T, database string) (h *chronicle, other *rest.Config) {
	t.Helper()
	const alone = "--controllers=" // no others write to the namespace
	if database != "postgres" {
		h = newChronicle(t, alone)
		return h, h.config
	}
	shared := []string{alone, "--endpoint", pgtest.DSN(t), "--cert-dir", t.TempDir()}
	h = newChronicle(t, shared...)
	return h, startServer(t, t.TempDir(), shared...).config(t)
}

// awaitOutput waits until a program has printed a text.
func (p *serverProcess) awaitOutput(t *testing.T, text string) {
	t.Helper()
	storetest.Eventually(t, "the program prints "+text, func() bool { return strings.Contains(p.log.String(), text) })
}

// expectExpiredWatch deletes the history of ConfigMaps.
func (h *chronicle) expectExpiredWatch(first history.Change) {
	h.Helper()
	open := h.watch(h.config, "",
		inShop+"?watch=1&resourceVersion="+first.ResourceVersion+"&fieldSelector=object.resource%3Dsecrets",
		"application/json")
	succeed(h.T, "compact", "--data-dir", h.dir, "--keep=0s", "--resource=configmaps")
	old := h.watch(h.config, "", inShop+"?watch=1&resourceVersion="+first.ResourceVersion, "application/json")
	old.awaits(h.T, `"reason":"Expired","code":410`)
	if open.hasEnded() {
		h.Error("a watch that selects nothing of what was deleted has ended")
	}
}

// A watch that is open shows what its user may list at the moment: not what another namespace has, not
// a namespace that is created again, and not what was revoked.
func TestHistory_WatchShowsWhatTheUserMayList(t *testing.T) {
	t.Parallel()
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newChronicle(t, flags(t)...)
			h.makeNamespace("shop")
			h.makeNamespace("bank")
			for namespace, user := range map[string]string{"shop": "alice", "bank": "bob"} {
				h.bind(namespace, user, "configmaps")
				h.bind(namespace, user, "byre:history-viewer")
			}
			h.awaitRights("alice", inShop)
			h.awaitRights("bob", inBank)
			list, _ := h.list("", allChanges)
			alice := h.watch(h.config, "alice", inShop+"?watch=1&resourceVersion="+list.ResourceVersion, "application/json")
			bob := h.watch(h.config, "bob", inBank+"?watch=1&resourceVersion="+list.ResourceVersion, "application/json")
			admin := h.watch(h.config, "", allChanges+"?watch=1&resourceVersion="+list.ResourceVersion, "application/json")
			h.write("bank", "config", "first")
			h.write("bank", "config", "canary-bank")
			h.write("shop", "config", "first")
			h.write("shop", "config", "canary-shop")
			alice.awaits(t, "canary-shop")
			bob.awaits(t, "canary-bank")

			deleteNamespace(t, h.kube, "shop")
			h.makeNamespace("shop")
			h.write("shop", "config", "second")
			h.write("shop", "config", "canary-again")
			admin.awaits(t, "canary-again")

			h.must(h.kube.RbacV1().RoleBindings("bank").Delete(t.Context(), "bob-configmaps", metav1.DeleteOptions{}))
			storetest.EventuallyDone(t, "bob may not list", func(context.Context) (bool, error) {
				status, _ := h.as("bob", "/api/v1/namespaces/bank/configmaps", "application/json")
				return status == http.StatusForbidden, nil
			})
			h.awaitHidden(bob, admin)
			_, ofAlice := alice.received()
			_, ofBob := bob.received()
			for _, canary := range []string{"canary-bank", "canary-again", `"namespace":"bank"`} {
				if strings.Contains(ofAlice, canary) {
					t.Errorf("alice's watch has %s: %s", canary, ofAlice)
				}
			}
			if strings.Contains(ofBob, `"namespace":"shop"`) {
				t.Errorf("bob's watch has shop: %s", ofBob)
			}
		})
	}
}

// awaitHidden waits until a watch does not show changes in bank any more that another one shows.
func (h *chronicle) awaitHidden(hidden, shown *changeStream) {
	h.Helper()
	deadline := time.Now().Add(storetest.Patience)
	for n := 0; ; n++ {
		value := fmt.Sprintf("revoked-%d-", n)
		h.write("bank", "config", value)
		shown.awaits(h.T, value)
		// What comes later has come to the other watch too.
		time.Sleep(time.Second)
		if _, text := hidden.received(); !strings.Contains(text, value) {
			return
		}
		if time.Now().After(deadline) {
			h.Fatal("a watch goes on to show what was revoked")
		}
	}
}

// A server that stops ends the watches.
func TestHistory_WatchEndsAtTheShutdown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := startServer(t, dir)
	h := &chronicle{T: t, dir: dir, config: server.config(t)}
	h.kube = kubernetes.NewForConfigOrDie(h.config)
	list, _ := h.list("", allChanges)
	s := h.watch(h.config, "", allChanges+"?watch=1&resourceVersion="+list.ResourceVersion, "application/json")
	h.write("default", "config", "first")
	s.awaits(t, `"name":"config"`)
	if status := server.stop(t); status != 0 {
		t.Errorf("status %d", status)
	}
	storetest.Eventually(t, "the watch has ended", s.hasEnded)
}
