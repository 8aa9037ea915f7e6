package client

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"byre/apiserver/console"
)

func newConsoleCommand() *cobra.Command {
	var flags ClusterFlags
	var open bool
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Open the server's web pages with the credentials of a kubeconfig",
		Long: "Serve the web pages of a server that runs with --console on a loopback address, with the credentials\n" +
			"of the kubeconfig, until it is interrupted. The URL has a secret, so that other users of this machine\n" +
			"can't use it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, _, err := flags.Load()
			if err != nil {
				return err
			}
			proxy, err := newConsoleProxy(config)
			if err != nil {
				return err
			}
			if err := proxy.check(cmd.Context()); err != nil {
				return err
			}
			return proxy.serve(cmd, open)
		},
	}
	flags.AddTo(cmd)
	cmd.Flags().BoolVar(&open, "open", false, "Open the URL in the browser.")
	return cmd
}

// consoleProxy passes requests for the console on to a server, with the credentials of a kubeconfig.
//
// Invariant: a request is passed on only if its path begins with the secret, and its Host is the address of
// the listener. The path keeps out other users of the machine, who can reach every port on a loopback
// address, and pages of other sites, which a browser shows no URL of this one (Referrer-Policy). The Host
// keeps out sites whose name resolves to this machine, should they learn the secret.
type consoleProxy struct {
	server    *url.URL
	name      string // the Host of requests to the server
	transport http.RoundTripper
	prefix    string
}

func newConsoleProxy(config *rest.Config) (*consoleProxy, error) {
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	p := &consoleProxy{server: server, name: server.Host, transport: transport, prefix: "/" + rand.Text()}
	if config.ServerName != "" { // the certificate is for this name
		p.name = config.ServerName
	}
	return p, nil
}

// check fails if the server does not show the console to the user.
func (p *consoleProxy) check(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		p.server.JoinPath(console.Path, "static/style.css").String(), nil)
	if err != nil {
		return err
	}
	request.Host = p.name
	response, err := p.transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch _, isConsole := response.Header["Content-Security-Policy"]; {
	case response.StatusCode == http.StatusOK:
		return nil
	case response.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%s does not accept the credentials of the kubeconfig", p.server)
	case response.StatusCode == http.StatusForbidden:
		return fmt.Errorf(
			"%s does not show the console to this user: bind the ClusterRole byre:console-user, if the server runs with --console", p.server)
	case response.StatusCode == http.StatusMisdirectedRequest && isConsole:
		return fmt.Errorf("%s does not know itself by the name %s: name it with --external-hostname or tls-server-name",
			p.server, p.name)
	case response.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s has no console: start it with --console", p.server)
	}
	return fmt.Errorf("%s answered %s", p.server, response.Status)
}

// serve serves the proxy until the command's context ends.
func (p *consoleProxy) serve(cmd *cobra.Command, open bool) error {
	ctx := cmd.Context()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: p.handler(listener.Addr().String()), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	link := "http://" + listener.Addr().String() + p.prefix + console.Path
	fmt.Fprintln(cmd.OutOrStdout(), link)
	if open {
		if err := openBrowser(ctx, link); err != nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "the URL could not be opened:", err)
		}
	}
	select {
	case <-ctx.Done():
		err = server.Close()
		<-served
	case err = <-served:
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// handler passes on the requests to an address that have the secret.
func (p *consoleProxy) handler(address string) http.Handler {
	_, port, _ := net.SplitHostPort(address) // a listener's address has one
	proxy := &httputil.ReverseProxy{
		Transport: p.transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			// Nothing is cleaned: a path with dots in it must not become another one than the
			// console's.
			r.Out.URL.Scheme, r.Out.URL.Host = p.server.Scheme, p.server.Host
			r.Out.URL.Path = p.below(r.In.URL.Path)
			r.Out.URL.RawPath = p.below(r.In.URL.EscapedPath())
			r.Out.Host = p.name
			// The credentials are the kubeconfig's alone.
			r.Out.Header = http.Header{"Accept": r.In.Header["Accept"], "User-Agent": r.In.Header["User-Agent"]}
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, "502: "+p.server.String()+": "+err.Error(), http.StatusBadGateway)
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
		isOurs := subtle.ConstantTimeCompare([]byte("/"+first), []byte(p.prefix)) == 1
		switch {
		case r.Host != address && r.Host != "localhost:"+port:
			http.Error(w, "421: this port answers to the Host "+address+" only", http.StatusMisdirectedRequest)
		case !isOurs || "/"+rest+"/" != console.Path && !strings.HasPrefix("/"+rest, console.Path):
			http.Error(w, "404: use the URL that byre console has printed", http.StatusNotFound)
		case r.Method != http.MethodGet:
			http.Error(w, "405: GET only", http.StatusMethodNotAllowed)
		default:
			proxy.ServeHTTP(w, r)
		}
	})
}

// below returns the server's path for a path of the proxy.
func (p *consoleProxy) below(path string) string {
	return strings.TrimSuffix(p.server.Path, "/") + strings.TrimPrefix(path, p.prefix)
}

// openBrowser opens a URL with the program of the desktop, which gets a file that leads to the URL: all users of the
// machine can read the arguments of a process.
func openBrowser(ctx context.Context, link string) error {
	file, err := os.CreateTemp("", "byre-console-*.html") // with mode 0600
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = os.Remove(file.Name()) })
	_, err = fmt.Fprintf(file, "<!doctype html><meta http-equiv=refresh content='0;url=%s'>\n", link)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	program := "xdg-open"
	if runtime.GOOS == "darwin" {
		program = "open"
	}
	if err := exec.CommandContext(ctx, program, file.Name()).Run(); err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	return nil
}
