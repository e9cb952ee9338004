package main

import (
	"github.com/alecthomas/kong"

	"oncewatch/collectors/config"
)

// CLI of the program.
type CLI struct {
	Shared
	ConfigFile  config.FileFlag  `name:"config.file" placeholder:"FILE" help:"YAML file with a key for every flag, nested or dotted; flags and environment win over it."`
	Version     kong.VersionFlag `help:"Print the version and exit." env:"-"`
	Run         runCmd           `cmd:"" help:"Consume, until SIGTERM or SIGINT."`
	Produce     produceCmd       `cmd:"" help:"Publish sample payments."`
	Prune       pruneCmd         `cmd:"" help:"Delete markers past their retention."`
	Migrate     migrateCmd       `cmd:"" help:"Create or upgrade the tables."`
	Deadletters deadletterCmd    `cmd:"" help:"Inspect what could not be applied, and send it again."`
}
