package auth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/server/options/authenticationconfig/metrics"
	"k8s.io/apiserver/pkg/util/filesystem"
	"k8s.io/klog/v2"
	kubeauthenticator "k8s.io/kubernetes/pkg/kubeapiserver/authenticator"
)

const (
	// reloadInterval is how often the file is read in addition to the file
	// system's notifications, which some file systems do not send.
	reloadInterval = time.Minute
	// updateTimeout bounds how long the issuers of a new configuration may take to
	// become healthy. If they take longer, the old configuration stays in effect.
	updateTimeout = time.Minute
)

// ReadConfiguration reads the file of --authentication-config.
func ReadConfiguration(path string) (*apiserver.AuthenticationConfiguration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return decodeConfiguration(data)
}

// decodeConfiguration decodes an AuthenticationConfiguration. Decoding is strict: an
// unknown field is an error, because it may be a misspelt restriction.
func decodeConfiguration(data []byte) (*apiserver.AuthenticationConfiguration, error) {
	if len(data) == 0 {
		return nil, errors.New("the file is empty")
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	object, err := runtime.Decode(codecs.UniversalDecoder(), data)
	if err != nil {
		return nil, err
	}
	config, ok := object.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("it holds %T, not an AuthenticationConfiguration", object)
	}
	return config, nil
}

// authenticationConfigReloader reloads the file of --authentication-config when it
// changes. The JWT issuers may change while the server runs; the anonymous section must
// not.
type authenticationConfigReloader struct {
	file      string
	serverID  string
	issuers   []string
	anonymous *apiserver.AnonymousAuthConfig
	update    func(context.Context, *apiserver.AuthenticationConfiguration) error

	// applied is the content that was last applied, or found to be invalid.
	applied string
}

func newAuthenticationConfigReloader(file, serverID string, config *kubeauthenticator.Config, update func(context.Context, *apiserver.AuthenticationConfiguration) error) *authenticationConfigReloader {
	return &authenticationConfigReloader{
		file:      file,
		serverID:  serverID,
		issuers:   config.ServiceAccountIssuers,
		anonymous: config.AuthenticationConfig.DeepCopy().Anonymous,
		update:    update,
		applied:   config.AuthenticationConfigData,
	}
}

func (r *authenticationConfigReloader) run(ctx context.Context) error {
	metrics.RegisterMetrics()
	metrics.RecordAuthenticationConfigLastConfigInfo(r.serverID, r.applied)
	filesystem.WatchUntil(ctx, reloadInterval, r.file,
		func() {
			if err := r.reloadIfChanged(ctx); err != nil {
				metrics.RecordAuthenticationConfigAutomaticReloadFailure(r.serverID)
				klog.ErrorS(err, "Cannot reload the authentication configuration; the previous one stays in effect", "file", r.file)
			}
		},
		func(err error) { klog.ErrorS(err, "Watching the authentication configuration", "file", r.file) },
	)
	return nil
}

// reloadIfChanged applies the file if its content differs from applied. An invalid
// content is not tried again until it changes. A valid content whose update failed, for
// example because an issuer is unreachable, is tried again at the next call.
func (r *authenticationConfigReloader) reloadIfChanged(ctx context.Context) error {
	data, err := os.ReadFile(r.file)
	if err != nil {
		return err
	}
	if string(data) == r.applied {
		return nil
	}
	config, err := decodeConfiguration(data)
	if err == nil {
		err = validateConfiguration(config, r.issuers)
	}
	if err == nil && !reflect.DeepEqual(r.anonymous, config.Anonymous) {
		err = errors.New("the anonymous section can't change while the server runs")
	}
	if err != nil {
		r.applied = string(data)
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, updateTimeout)
	defer cancel()
	if err := r.update(ctx, config); err != nil {
		return err
	}
	r.applied = string(data)
	metrics.RecordAuthenticationConfigAutomaticReloadSuccess(r.serverID, r.applied)
	klog.InfoS("Reloaded the authentication configuration", "file", r.file)
	return nil
}
