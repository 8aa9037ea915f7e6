package server

import (
	"cmp"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"

	"byre/apiserver/controllers"
	"byre/apiserver/process"
)

// controllerOptions say which controllers run in this process. The usage of each flag says what its field means.
type controllerOptions struct {
	Controllers                          []string
	WithControllerManager, WithScheduler bool
}

// newControllersFeature makes the feature of controllers and the scheduler in this process.
func newControllersFeature() Feature {
	o := &controllerOptions{Controllers: []string{"*"}}
	return Feature{
		AddFlags: func(section func(string) *pflag.FlagSet) { o.addFlags(section("controllers")) },
		Validate: func(all *Options) []error {
			var errs invalid
			_, err := o.enabled(all)
			errs.unless(err == nil, "--controllers: %w", err)
			return errs
		},
		New: o.newPart,
	}
}

func (o *controllerOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.Controllers, "controllers", o.Controllers,
		"Controllers to run in this process: '*' is all that are on by default, 'foo' is the one of that name, '-foo' leaves it out; empty runs none, for clusters with a kube-controller-manager. All controllers: "+strings.Join(controllers.Names(), ", ")+".")
	fs.BoolVar(&o.WithControllerManager, "with-controller-manager", o.WithControllerManager,
		"Run all controllers that kube-controller-manager runs by default in this process: '*' in --controllers means them too. They pause while a kube-controller-manager holds its Lease.")
	fs.BoolVar(&o.WithScheduler, "with-scheduler", o.WithScheduler,
		"Run kube-scheduler's scheduler in this process. It pauses while a kube-scheduler holds its Lease.")
}

// enabled returns the names of the controllers to run.
func (o *controllerOptions) enabled(all *Options) ([]string, error) {
	enabled, err := controllers.Select(o.Controllers, o.WithControllerManager)
	if !all.Store.GarbageCollection {
		enabled = slices.DeleteFunc(enabled, func(name string) bool { return name == names.GarbageCollectorController })
	}
	return enabled, err
}

func (o *controllerOptions) newPart(b *Base) (part Part, err error) {
	config := controllers.Config{
		ClientConfig: b.As,
		Self:         b.Client,
		Files: controllers.Files{
			CACert: b.Files.CACert, CAKey: b.Files.CAKey,
			ServiceAccountKey: b.Options.Auth.Authentication.SigningKeyFile,
		},
		NewMetadataWatch: b.WatchMetadata,
		ServerID:         b.ID,
		Hosts:            b.Hosts,
		Shared:           b.Database.Shared,
		EpochEnded:       b.Storage.Feed.EpochEnded,
	}
	// the CA that clients verify the server by
	config.RootCA, err = os.ReadFile(cmp.Or(b.Options.Serving.RootCAFile, b.Files.CACert))
	if err != nil {
		return part, err
	}
	if !b.IsFork {
		if config.Controllers, err = o.enabled(b.Options.Options); err != nil {
			return part, err
		}
		config.WithControllerManager, config.WithScheduler = o.WithControllerManager, o.WithScheduler
	}
	part.Member = []process.Component{{Name: "controllers", Run: controllers.New(config).Run}}
	if len(config.Controllers) > 0 {
		part.ComponentStatuses = append(part.ComponentStatuses, "controller-manager")
	}
	if config.WithScheduler {
		part.ComponentStatuses = append(part.ComponentStatuses, "scheduler")
	}
	return part, nil
}
