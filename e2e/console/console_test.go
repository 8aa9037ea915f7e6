package console

import (
	"bufio"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

func TestMain(m *testing.M) { os.Exit(programs.Main(m, programs.Byre)) }

// openConsole runs "byre console" until the test ends, and returns the URL that it prints.
func openConsole(t *testing.T, kubeconfig string) string {
	t.Helper()
	cmd := exec.Command(programs.Byre.Path(), "console", "--kubeconfig", kubeconfig)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // if it has ended, Wait says so
		if err := cmd.Wait(); err != nil {
			t.Errorf("byre console ended with: %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("byre console printed %q: %v", line, err)
	}
	return strings.TrimSpace(line)
}

// browser is a tab of Chromium, with what went wrong in it.
type browser struct {
	*testing.T
	tab   context.Context
	first string // the URL of the first page

	mu       sync.Mutex
	problems []string
}

func startBrowser(t *testing.T, first string) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("%v: \"make test-setup\" installs it", err)
	}
	at, err := url.Parse(first)
	if err != nil {
		t.Fatal(err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox)
	allocator, closeAllocator := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(closeAllocator)
	b := &browser{T: t, first: first}
	tab, closeTab := chromedp.NewContext(allocator, chromedp.WithListener(func(event any) { b.watch(event, at.Host) }))
	t.Cleanup(closeTab)
	b.tab = tab
	return b
}

// watch notes what must not happen.
func (b *browser) watch(event any, host string) {
	switch event := event.(type) {
	case *network.EventRequestWillBeSent:
		if to, err := url.Parse(event.Request.URL); err != nil || to.Scheme != "data" && to.Host != host {
			b.problem("a request to %s", event.Request.URL)
		}
	case *runtime.EventExceptionThrown:
		b.problem("an exception: %s", event.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		b.problem("a message of the type %s", event.Type)
	case *log.EventEntryAdded: // violations of the policy are entries too
		b.problem("%s: %s %s", event.Entry.Source, event.Entry.Text, event.Entry.URL)
	case *page.EventJavascriptDialogOpening:
		b.problem("a dialog: %s", event.Message)
	}
}

func (b *browser) problem(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problems = append(b.problems, fmt.Sprintf(format, args...))
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	if err := chromedp.Do(b.tab, steps...); err != nil {
		b.Fatal(err)
	}
}

// evaluate returns the value of an expression of JavaScript.
func evaluate[T any](b *browser, expression string) T {
	b.Helper()
	value, err := chromedp.Run(b.tab, chromedp.Evaluate[T](expression))
	if err != nil {
		b.Fatal(err)
	}
	return value
}

// expectNone expects that nothing went wrong.
func (b *browser) expectNone(of string) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, problem := range b.problems {
		b.Errorf("%s: %s", of, problem)
	}
	b.problems = nil
}

// pages are those that the tests load, and the name of a screenshot of some.
var pages = []struct{ path, name string }{
	{"", "resources"},
	{"r/apps/v1/deployments?namespace=shop", "table"},
	{"r/rbac.authorization.k8s.io/v1/clusterroles?sort=Age&desc=1", ""},
	{"o/apps/v1/deployments/shop/web", "object"},
	{"deleted?namespace=shop", "deleted"},
	{"sql?q=SELECT+image%2C+count%28*%29+AS+containers%0AFROM+containers%0AGROUP+BY+image%0AORDER+BY+containers+DESC%2C+image", "sql"},
	{"sql", ""},
	{"health", "health"},
}

// shots are the screenshots of the docs: pages by name, of a width and a scheme.
var shots = map[string]bool{
	"resources-1280-light": true, "table-390-dark": true, "object-1280-dark": true,
	"deleted-390-light": true, "sql-1280-light": true, "health-390-dark": true,
}

// Every page fits on a telephone and on a large screen, in both schemes: nothing makes the page wider than the
// window. Nothing is loaded from another host, nothing breaks the policy, and no script fails.
func TestConsole_PagesFitAndLoadNothingElse(t *testing.T) {
	t.Parallel()
	server := startByre(t)
	fillShop(t, server)
	b := startBrowser(t, openConsole(t, server.Kubeconfig))
	for _, scheme := range []string{"light", "dark"} {
		for _, size := range []struct{ width, height int64 }{{390, 844}, {1280, 800}} {
			b.do(chromedp.EmulateViewport(size.width, size.height),
				chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
					_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
						Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
					})
					return err
				}))
			for _, p := range pages {
				b.do(chromedp.Navigate(b.first+p.path), chromedp.WaitReady("main"))
				overflow := evaluate[int](b, `document.documentElement.scrollWidth - window.innerWidth`)
				background := evaluate[string](b, `getComputedStyle(document.body).backgroundColor`)
				name := fmt.Sprintf("%s at %d px, %s", p.path, size.width, scheme)
				if overflow > 0 {
					t.Errorf("%s is %d px wider than the window", name, overflow)
				}
				if isLight := background == "rgb(255, 255, 255)"; isLight != (scheme == "light") {
					t.Errorf("%s has the background %s", name, background)
				}
				b.expectNone(name)
				if shot := fmt.Sprintf("%s-%d-%s", p.name, size.width, scheme); shots[shot] {
					b.keep(shot)
				}
			}
		}
	}
}

// keep writes a screenshot to the directory of $BYRE_SCREENSHOTS, if it is set.
func (b *browser) keep(name string) {
	b.Helper()
	dir := os.Getenv("BYRE_SCREENSHOTS")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(b.tab, chromedp.CaptureScreenshot())
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "console-"+name+".png"), png, 0o600); err != nil {
		b.Fatal(err)
	}
}

// A row appears, and goes, without the page being loaded again.
func TestConsole_RowsAreLive(t *testing.T) {
	t.Parallel()
	server := startByre(t)
	kube := client(t, server, "")
	b := startBrowser(t, openConsole(t, server.Kubeconfig))
	b.do(chromedp.Navigate(b.first+"r/rbac.authorization.k8s.io/v1/clusterroles"), chromedp.WaitReady("#rows"))
	evaluate[int](b, `window.loaded = 1`)
	patience, cancel := context.WithTimeout(b.tab, storetest.Patience)
	defer cancel()
	const name = "live <script>alert(1)<script>"
	found := fmt.Sprintf(`//tbody//a[text()=%q]`, name)
	if _, err := kube.RbacV1().ClusterRoles().Create(t.Context(), clusterRole(name), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Do(patience, chromedp.WaitVisible(found)); err != nil {
		t.Fatalf("the row does not appear: %v", err)
	}
	if err := kube.RbacV1().ClusterRoles().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Do(patience, chromedp.WaitNotPresent(found)); err != nil {
		t.Fatalf("the row does not go: %v", err)
	}
	if evaluate[int](b, `window.loaded`) != 1 {
		t.Error("the page was loaded again")
	}
	b.expectNone("the table")
}

func startByre(t *testing.T) *servers.Server {
	t.Helper()
	s, err := servers.Byre{Dir: filepath.Join(t.TempDir(), "data"),
		Args: []string{"--console", "--with-controller-manager"}}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("byre ended with: %v\n%s", err, s.LogTail())
		}
	})
	return s
}
