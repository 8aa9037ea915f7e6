package main

import (
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	generated "k8s.io/kube-aggregator/pkg/generated/openapi"

	"byre/apiserver/handlers"
	"byre/apiserver/handlers/documents"
	"byre/apiserver/history"
	"byre/apiserver/process/pki"
	"byre/apiserver/server"
	"byre/apiserver/storage/changes"
	"byre/cmd/byre/transfer"
	"byre/migrations"
	"byre/sqlstore"
	"byre/watch"
)

// apiOptions are the flags of "byre api".
type apiOptions struct {
	store            server.StoreOptions
	kubeconfig       string
	bindAddress      net.IP
	port             int
	advertiseAddress string
	printsManifest   bool
}

func newServeAPICommand() *cobra.Command {
	o := apiOptions{store: server.NewStoreOptions(), bindAddress: net.IPv4zero, port: 8443, advertiseAddress: "127.0.0.1"}
	o.store.DataDir = "./byre-api"
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.store.AddFlags(all)
	cmd := &cobra.Command{
		Use:   "api",
		Short: "Serve the history of a stock kube-apiserver on \"byre etcd\", as an aggregated API server",
		Long: "Serve history.byre.dev beside a stock kube-apiserver whose objects are in \"byre etcd\" on\n" +
			"PostgreSQL. kube-apiserver sends it the requests of the group, once it knows the manifest\n" +
			"that --print-manifest prints; it authenticates and authorizes their users. docs/etcd.md has\n" +
			"the steps.",
		Example: "  byre api --print-manifest | kubectl apply -f -\n" +
			"  byre api --endpoint postgres:///byre --kubeconfig /etc/kubernetes/admin.conf",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.printsManifest {
				return o.printManifest(cmd.OutOrStdout())
			}
			return o.serve(cmd.Context())
		},
	}
	flags := cmd.Flags()
	for _, name := range []string{"endpoint", "database-schema", "allow-unsafe-durability"} {
		flags.AddFlag(all.Lookup(name))
	}
	flags.Lookup("endpoint").Usage = "Database of \"byre etcd\": postgres://... in any form that libpq takes; passwordfile=FILE in it names a file with the password, which is read for every connection."
	// It is the data directory too: nothing of the server on the same host is meant.
	flags.StringVar(&o.store.DataDir, "cert-dir", o.store.DataDir,
		"Directory of the certificates and keys that this server makes for itself.")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "",
		"File with the address of kube-apiserver and a user who may create TokenReviews and SubjectAccessReviews and read the ConfigMap extension-apiserver-authentication, such as the ServiceAccount of the manifest. If not set, that of the Pod.")
	flags.IPVar(&o.bindAddress, "bind-address", o.bindAddress, "Address to listen on.")
	flags.IntVar(&o.port, "secure-port", o.port, "Port to serve HTTPS on.")
	flags.StringVar(&o.advertiseAddress, "advertise-address", o.advertiseAddress,
		"Host name or IPv4 address at which kube-apiserver finds this server, for the manifest.")
	flags.BoolVar(&o.printsManifest, "print-manifest", false,
		"Print what kube-apiserver must know of this server, for \"kubectl apply -f -\", and exit.")
	return cmd
}

// apiService is the Service under which kube-apiserver finds the server.
const apiService = "byre-api.kube-system.svc"

// certificates makes and renews the server's own.
func (o *apiOptions) certificates() (pki.Files, error) {
	files, _, err := pki.Ensure(pki.Config{
		Dir: o.store.DataDir, Hosts: []string{apiService, o.advertiseAddress}, Now: time.Now(),
	})
	return files, err
}

//go:embed api.yaml
var apiManifest string

func (o *apiOptions) printManifest(out io.Writer) error {
	if problems := validation.IsDNS1123Subdomain(o.advertiseAddress); len(problems) > 0 {
		return fmt.Errorf("--advertise-address must be a host name or an IPv4 address: %s", strings.Join(problems, ", "))
	}
	files, err := o.certificates()
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(files.CACert)
	if err != nil {
		return err
	}
	_, err = strings.NewReplacer("ADDRESS", o.advertiseAddress, "PORT", strconv.Itoa(o.port),
		"AUTHORITY", base64.StdEncoding.EncodeToString(ca)).WriteString(out, apiManifest)
	return err
}

// serve serves until ctx ends.
func (o *apiOptions) serve(ctx context.Context) (err error) {
	dsn, err := o.store.DSN()
	if err != nil {
		return err
	}
	dialect, _, err := migrations.ParseEndpoint(dsn)
	if err != nil {
		return err
	}
	if dialect == migrations.SQLite {
		return errors.New("byre api needs a PostgreSQL database: name that of \"byre etcd\" with --endpoint; " +
			"a SQLite file is open in one process, and \"byre etcd\" is that")
	}
	config, err := o.config()
	if err != nil {
		return err
	}
	defer func() { _ = config.SecureServing.Listener.Close() }()
	database, err := openDatabase(ctx, o.store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, database.Driver.Close()) }()
	objects, err := transfer.NewObjects(database.Driver)
	if err != nil {
		return err
	}
	feed := watch.New(database.Driver, watch.Options{
		Logger: slog.New(logr.ToSlogHandler(klog.Background())), Registerer: legacyregistry.Registerer(),
	})
	log := &changes.Log{
		Driver: objects, Authorizer: config.Authorization.Authorizer,
		Prefix: func(sqlstore.Resource) string { return "" }, // nothing is decrypted
	}
	storage := history.New(history.Config{Log: log, Feed: feed})
	config.AddReadyzChecks(healthz.NamedCheck("database", func(r *http.Request) error {
		_, failed := database.Driver.State(r.Context())
		return failed
	}))
	s, err := newAPIServer(config, history.NewGroup(storage))
	if err != nil {
		return err
	}
	// The requests end first, then the watches, then what they read from.
	defer startPart(ctx, database.Driver.Maintain)()
	defer startPart(ctx, feed.Run)()
	defer startPart(ctx, storage.Run)()
	defer startPart(ctx, o.renew)()
	klog.InfoS("Serving the history", "database", database.Name, "address", config.SecureServing.Listener.Addr().String())
	return s.PrepareRun().RunWithContext(ctx)
}

// startPart runs a part until stop is called, which waits for it.
func startPart(ctx context.Context, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := run(ctx); err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "A part of the server has ended")
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// renew renews the certificates of a server that runs for long; the listener reads them again.
func (o *apiOptions) renew(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(24 * time.Hour):
		}
		if _, err := o.certificates(); err != nil {
			klog.ErrorS(err, "The certificates can't be renewed")
		}
	}
}

// config binds the port, and has kube-apiserver authenticate and authorize requests.
func (o *apiOptions) config() (*genericapiserver.Config, error) {
	files, err := o.certificates()
	if err != nil {
		return nil, err
	}
	config := genericapiserver.NewConfig(handlers.NewCodecs(handlers.NewScheme(func(*runtime.Scheme) {})))
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	serving := genericoptions.NewSecureServingOptions()
	serving.BindAddress, serving.BindPort = o.bindAddress, o.port
	serving.ServerCert.CertKey = genericoptions.CertKey{CertFile: files.ServingCert, KeyFile: files.ServingKey}
	serving.HTTP2MaxStreamsPerConnection = 1000 // of one client, kube-apiserver
	if err := serving.WithLoopback().ApplyTo(&config.SecureServing, &config.LoopbackClientConfig); err != nil {
		return nil, err
	}
	authentication := genericoptions.NewDelegatingAuthenticationOptions()
	authentication.RemoteKubeConfigFile = o.kubeconfig
	authorization := genericoptions.NewDelegatingAuthorizationOptions()
	authorization.RemoteKubeConfigFile = o.kubeconfig
	// changes.Rights keeps answers itself, but not those about a namespace that was deleted and created again.
	authorization.AllowCacheTTL, authorization.DenyCacheTTL = 0, 0
	if err = authentication.ApplyTo(&config.Authentication, config.SecureServing, nil); err == nil {
		err = authorization.ApplyTo(&config.Authorization)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("kube-apiserver can't be asked about users, see --kubeconfig: %w", err),
			config.SecureServing.Listener.Close())
	}
	return config, nil
}

// newAPIServer makes an upstream server of one group.
func newAPIServer(config *genericapiserver.Config, group handlers.Group) (*genericapiserver.GenericAPIServer, error) {
	definitions := documents.Join(generated.GetOpenAPIDefinitions, history.Definitions)
	names := openapinamer.NewDefinitionNamer(group.Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, names)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, names)
	s, err := config.Complete(nil).New("byre-api", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, err
	}
	version := schema.GroupVersion{Group: group.Name, Version: group.Versions[0]}
	// Upstream's installer looks for it there. It is encoded without a version all the same.
	group.Scheme.AddKnownTypeWithName(version.WithKind("WatchEvent"), &metav1.WatchEvent{})
	return s, s.InstallAPIGroup(&genericapiserver.APIGroupInfo{
		PrioritizedVersions:          []schema.GroupVersion{version},
		VersionedResourcesStorageMap: group.Storage,
		OptionsExternalVersion:       &schema.GroupVersion{Version: "v1"},
		Scheme:                       group.Scheme,
		NegotiatedSerializer:         group.Codecs,
		ParameterCodec:               group.ParameterCodec,
	})
}
