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
	// reloadInterval is how long a change of the file goes unseen where the
	// file system tells nothing.
	reloadInterval = time.Minute
	// updateTimeout bounds how long a new configuration may take to become
	// healthy (to reach its issuers) before the old one is kept.
	updateTimeout = time.Minute
)

// decodeConfiguration reads an AuthenticationConfiguration strictly: an unknown
// field is an error, because it may be a misspelt restriction.
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

// reloader follows the file of --authentication-config. Its JWT issuers may
// change while the server runs, its anonymous section may not.
type reloader struct {
	file      string
	serverID  string
	issuers   []string
	anonymous *apiserver.AnonymousAuthConfig
	update    func(context.Context, *apiserver.AuthenticationConfiguration) error

	// applied is the content last taken over, or found to be of no use.
	applied string
}

func newReloader(file, serverID string, config *kubeauthenticator.Config, update func(context.Context, *apiserver.AuthenticationConfiguration) error) *reloader {
	return &reloader{
		file:      file,
		serverID:  serverID,
		issuers:   config.ServiceAccountIssuers,
		anonymous: config.AuthenticationConfig.DeepCopy().Anonymous,
		update:    update,
		applied:   config.AuthenticationConfigData,
	}
}

func (r *reloader) run(ctx context.Context) error {
	metrics.RegisterMetrics()
	metrics.RecordAuthenticationConfigLastConfigInfo(r.serverID, r.applied)
	filesystem.WatchUntil(ctx, reloadInterval, r.file,
		func() {
			if err := r.check(ctx); err != nil {
				metrics.RecordAuthenticationConfigAutomaticReloadFailure(r.serverID)
				klog.ErrorS(err, "Keeping the authentication configuration that is in force", "file", r.file)
			}
		},
		func(err error) { klog.ErrorS(err, "Watching the authentication configuration", "file", r.file) },
	)
	return nil
}

// check takes over the file if it changed. A file that can't ever be good is
// not tried again until it changes; one that only failed now is.
func (r *reloader) check(ctx context.Context) error {
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
