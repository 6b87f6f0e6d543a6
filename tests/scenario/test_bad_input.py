"""Whatever a user gets wrong ends in one sentence on stderr and exit code 2, and nothing is written."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

import pytest

import hsfl
from hsfl.scenario.catalog import CATALOG
from tests.scenario.command import SOURCE, Ended, contents, no_longer_than, process
from tests.scenario.scenarios import ABSENT, SMALL, changed, to_toml, write

NAN, INF = float("nan"), float("inf")
ONES = [1.0] * 5
RATE = 'write a number in bit/s or text such as "80 Mbps"'
TARGET = {"convergence.rounds": ABSENT, "convergence.slack": ABSENT}
FACTORY = {"model": {"factory": "no_such_net:build", "input_shape": [8]}}
HEADER = "name,forward_flops,backward_flops,activation_bits,gradient_bits,parameter_bits,optimizer_bits"

#: What is wrong: the changes to a valid scenario, and what the sentence has to say.
BAD_FIELDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    # names of fields and sections
    "unknown field": ({"zzzzqq": 1}, ["unknown field zzzzqq", "known here are name, description, seed"]),
    "misspelt field": ({"nmae": "x"}, ["unknown field nmae", "did you mean name?"]),
    "misspelt section": (
        {"trainning": SMALL["training"], "training": ABSENT},
        ["unknown field trainning", "did you mean training?"],
    ),
    "misspelt convergence": ({"convergance": {}}, ["unknown field convergance", "did you mean convergence?"]),
    "misspelt in training": (
        {"training.batchsize": 3, "training.batch_size": ABSENT},
        ["unknown field training.batchsize", "did you mean batch_size?"],
    ),
    "misspelt in model": ({"model.nane": "x"}, ["unknown field model.nane", "did you mean name?"]),
    "misspelt in a tier": (
        {"tiers.0.uplnk": 1, "tiers.0.uplink": ABSENT},
        ["unknown field tiers.device.uplnk", "did you mean uplink?", "known here are name, entities"],
    ),
    "misspelt in convergence": (
        {"convergence.smothness": 1, "convergence.smoothness": ABSENT},
        ["unknown field convergence.smothness", "did you mean smoothness?"],
    ),
    # who takes part
    "no cohort": ({"participation": {"cohort": 0}}, ["participation.cohort = 0", "at least 1 client", "0.1"]),
    "a share of all": ({"participation": {"cohort": 1.0}}, ["participation.cohort = 1.0", "leave it out for all"]),
    "a cohort in words": ({"participation": {"cohort": "some"}}, ['participation.cohort = "some"', "whole number"]),
    "a cohort that is true": ({"participation": {"cohort": True}}, ["participation.cohort = true", "whole number"]),
    "a cohort of too many": (
        {"participation": {"cohort": 7}},
        ["participation.cohort = 7", "there are 6 clients", "leave it out for all"],
    ),
    "a misspelt cohort": ({"participation": {"cohorts": 2}}, ["participation.cohorts", "did you mean cohort?"]),
    # missing
    "no name": ({"name": ABSENT}, ["name is missing"]),
    "no training": ({"training": ABSENT}, ["training is missing"]),
    "no tiers": ({"tiers": ABSENT}, ["tiers is missing"]),
    "no convergence": ({"convergence": ABSENT}, ["convergence.smoothness is missing", "hsfl estimate"]),
    "no batch size": ({"training.batch_size": ABSENT}, ["training.batch_size is missing", "Samples per client"]),
    "no entities": ({"tiers.1.entities": ABSENT}, ["tiers.edge.entities is missing"]),
    "no compute": ({"tiers.0.compute": ABSENT}, ["tiers.device.compute is missing", "0.5 TFLOPS"]),
    "no tier name": ({"tiers.1.name": ABSENT}, ["tiers[2].name is missing"]),
    "no smoothness": ({"convergence.smoothness": ABSENT}, ["convergence.smoothness is missing", "hsfl estimate"]),
    "no uplink": ({"tiers.0.uplink": ABSENT}, ["tiers.device.uplink is missing", "80 Mbps"]),
    "no downlink": ({"tiers.1.downlink": ABSENT}, ["tiers.edge.downlink is missing", "80 Mbps"]),
    "no fed uplink": ({"tiers.0.fed_uplink": ABSENT}, ["tiers.device.fed_uplink is missing", "6 entities", "80 Mbps"]),
    "no fed downlink": ({"tiers.1.fed_downlink": ABSENT}, ["tiers.edge.fed_downlink is missing", "2 entities"]),
    "no fed links at the top": ({"tiers.2.entities": 2}, ["tiers.cloud.fed_uplink is missing", "2 entities"]),
    # wrong types
    "number for text": ({"name": 3}, ["name = 3", "text"]),
    "text for a whole number": ({"seed": "a"}, ['seed = "a"', "whole number"]),
    "bool for a whole number": ({"training.batch_size": True}, ["training.batch_size = true", "whole number"]),
    "fraction for a whole number": ({"training.batch_size": 1.5}, ["training.batch_size = 1.5", "whole number"]),
    "float for entities": ({"tiers.1.entities": 2.0}, ["tiers.edge.entities = 2.0", "whole number"]),
    "text for a number": ({"training.learning_rate": "0.1"}, ['training.learning_rate = "0.1"', "number"]),
    "bool for a number": ({"convergence.smoothness": True}, ["convergence.smoothness = true", "number"]),
    "list for a number": ({"convergence.initial_gap": [1]}, ["convergence.initial_gap = [1]", "number"]),
    "bool for a rate": ({"tiers.0.uplink": True}, ["tiers.device.uplink = true", RATE]),
    "text for a section": ({"training": "fast"}, ['training = "fast"']),
    "text for a section with a name": (
        {"strategy": "fixed"},
        ['write it as a section: [strategy] with name = "fixed"'],
    ),
    "a field of another section": ({"training.rounds": 20}, ["did you mean convergence.rounds or stopping.rounds?"]),
    "a section among fields": ({"training.strategy": "fixed"}, ["did you mean strategy.name?"]),
    "number for tiers": ({"tiers": 3}, ["tiers = 3", "list"]),
    "numbers as tiers": ({"tiers": [1, 2]}, ["tiers[1] = 1"]),
    "number for a list": ({"convergence.gradient_variance": 1.0}, ["convergence.gradient_variance = 1.0", "list"]),
    "text in a list": (
        {"convergence.gradient_variance": [1.0, "2", 1, 1, 1]},
        ['convergence.gradient_variance[2] = "2"', "number"],
    ),
    "bool in a list": ({"convergence.gradient_variance": [True] * 5}, ["convergence.gradient_variance[1] = true"]),
    "number for parents": ({"tiers.0.parents": 1}, ["tiers.device.parents = 1", "list"]),
    "text in parents": ({"tiers.0.parents": ["0"] * 6}, ['tiers.device.parents[1] = "0"', "whole number"]),
    "number for a model": ({"model.name": 16}, ["model.name = 16", "text"]),
    "text for a shape": ({"model.input_shape": "1x28x28"}, ['model.input_shape = "1x28x28"', "list"]),
    # out of range
    "empty name": ({"name": ""}, ['name = ""']),
    "negative seed": ({"seed": -1}, ["seed = -1", "greater than or equal to 0"]),
    "no samples": ({"training.batch_size": 0}, ["training.batch_size = 0", "greater than or equal to 1"]),
    "endless batch": ({"training.batch_size": 10**30}, ["training.batch_size = 10000", "less than or equal to"]),
    "zero step": ({"training.learning_rate": 0}, ["training.learning_rate = 0", "greater than"]),
    "negative step": ({"training.learning_rate": -1e-3}, ["training.learning_rate = -0.001", "greater than"]),
    "nan step": ({"training.learning_rate": NAN}, ["training.learning_rate = nan", "finite"]),
    "infinite step": ({"training.learning_rate": INF}, ["training.learning_rate = inf", "finite"]),
    "no entities at all": ({"tiers.1.entities": 0}, ["tiers.edge.entities = 0", "greater than or equal to 1"]),
    "negative entities": ({"tiers.1.entities": -4}, ["tiers.edge.entities = -4", "greater than or equal to 1"]),
    "huge entities": ({"tiers.0.entities": 10**12}, ["tiers.device.entities = 1000000000000", "less than or equal to"]),
    "entities beyond any integer": ({"tiers.0.entities": 10**40}, ["tiers.device.entities = 1000", "less than or"]),
    "negative slack": ({"convergence.slack": -1.0}, ["convergence.slack = -1.0", "greater than or equal to 0"]),
    "negative target": (TARGET | {"convergence.target": -1}, ["convergence.target = -1", "greater than"]),
    "zero rounds": ({"convergence.rounds": 0}, ["convergence.rounds = 0", "greater than"]),
    "negative in a list": (
        {"convergence.gradient_variance": [1.0, 1.0, -1.0, 1, 1]},
        ["convergence.gradient_variance[3] = -1.0", "greater than or equal to 0"],
    ),
    "nan in a list": (
        {"convergence.gradient_second_moment": [NAN, 1, 1, 1, 1]},
        ["convergence.gradient_second_moment[1] = nan", "finite"],
    ),
    "zero in a shape": ({"model.input_shape": [1, 0, 28]}, ["model.input_shape = [1, 0, 28]", "at least 1"]),
    # quantities
    "unknown compute unit": ({"tiers.0.compute": "5 Tflop"}, ['tiers.device.compute = "5 Tflop"', "0.5 TFLOPS"]),
    "unknown rate unit": ({"tiers.0.uplink": "80 mbps"}, ['tiers.device.uplink = "80 mbps"', "'mbps'", RATE]),
    "unknown size unit": ({"tiers.0.memory": "8 GBs"}, ['tiers.device.memory = "8 GBs"', "'GBs'", "8 GB"]),
    "another kind's unit": ({"tiers.0.uplink": "8 GB"}, ['tiers.device.uplink = "8 GB"', "unknown unit 'GB'", RATE]),
    "no number": ({"tiers.0.uplink": "fast"}, ['tiers.device.uplink = "fast"', RATE]),
    "empty quantity": ({"tiers.0.uplink": ""}, ['tiers.device.uplink = ""', RATE]),
    "negative rate": ({"tiers.0.uplink": -3}, ["tiers.device.uplink = -3", "positive and finite", RATE]),
    "negative rate in text": ({"tiers.0.uplink": "-3 Mbps"}, ['tiers.device.uplink = "-3 Mbps"', "positive"]),
    "zero rate": ({"tiers.0.uplink": 0}, ["tiers.device.uplink = 0", "positive and finite", RATE]),
    "nan rate": ({"tiers.0.uplink": NAN}, ["tiers.device.uplink = nan", "positive and finite", RATE]),
    "infinite rate": ({"tiers.0.uplink": INF}, ["tiers.device.uplink = inf", "positive and finite", RATE]),
    "infinite memory": ({"tiers.0.memory": INF}, ["tiers.device.memory = inf", "positive and finite", "8 GB"]),
    "overflowing rate": ({"tiers.0.uplink": "1e308 EBps"}, ['tiers.device.uplink = "1e308 EBps"', "finite"]),
    "rates of the wrong length": ({"tiers.0.uplink": [1e6] * 5}, ["tiers.device.uplink", "5 values", "6 entities"]),
    "no rates": ({"tiers.0.uplink": []}, ["tiers.device.uplink = []", "empty list", "uniform"]),
    "bad rate in a list": ({"tiers.1.uplink": [1e6, "x"]}, ['tiers.edge.uplink = [1000000.0, "x"]', RATE]),
    "unknown distribution": (
        {"tiers.0.uplink": {"unifrom": [1, 2]}},
        ["tiers.device.uplink = { unifrom = [1, 2] }", "uniform = [low, high]"],
    ),
    "distribution of one number": ({"tiers.0.uplink": {"uniform": [1]}}, ["tiers.device.uplink", "two numbers"]),
    "distribution upside down": ({"tiers.0.uplink": {"uniform": [3, 2]}}, ["tiers.device.uplink", "swap"]),
    "distribution below zero": ({"tiers.0.uplink": {"uniform": [-1, 2]}}, ["tiers.device.uplink", "positive"]),
    "lognormal too wide": ({"tiers.0.uplink": {"lognormal": [1, 11]}}, ["tiers.device.uplink", "at most 10"]),
    # tiers
    "one tier": ({"tiers": SMALL["tiers"][2:]}, ["tiers = [{", "at least 2"]),
    "no tier": ({"tiers": []}, ["tiers = []", "at least 2"]),
    "too many tiers": ({"tiers": [SMALL["tiers"][2]] * 40}, ["tiers = [{", "at most 32"]),
    "duplicate tier names": ({"tiers.1.name": "device"}, ['tiers.name = "device"', "its own name"]),
    "more above than below": ({"tiers.1.entities": 7}, ["tiers.device.entities = 6", "7 of tier edge"]),
    "uplink at the top": ({"tiers.2.uplink": 1e6}, ["tiers.cloud.uplink", "remove the field"]),
    "parents at the top": ({"tiers.2.parents": [0]}, ["tiers.cloud.parents", "remove the field"]),
    "parents of the wrong length": (
        {"tiers.0.parents": [0, 0, 1]},
        ["tiers.device.parents", "3 entries", "6 entities"],
    ),
    "no parents": ({"tiers.0.parents": []}, ["tiers.device.parents", "0 entries", "6 entities"]),
    "parents out of range": (
        {"tiers.0.parents": [0, 0, 1, 1, 1, 2]},
        ["tiers.device.parents: 2 is not an entity of tier edge", "from 0 to 1"],
    ),
    "negative parent": (
        {"tiers.0.parents": [0, 0, 1, 1, 1, -1]},
        ["tiers.device.parents: -1 is not an entity of tier edge", "from 0 to 1"],
    ),
    "parent beyond any integer": ({"tiers.0.parents": [2**70] + [0] * 5}, ["tiers.device.parents: 11805916"]),
    "entity without clients": (
        {"tiers.0.parents": [0] * 6},
        ["tiers.device.parents", "entity 1 of tier edge", "without clients"],
    ),
    "fewer layers than tiers": (
        {"tiers": [{**SMALL["tiers"][0], "name": f"t{i}"} for i in range(5)] + SMALL["tiers"][2:]},
        ["5 layers for 6 tiers", "at least one layer"],
    ),
    # codes of links
    "unknown code": (
        {"tiers.0.code": "int5"},
        ['tiers.device.code = "int5": no such code', "known are fp32, bf16, int8"],
    ),
    "number for a code": ({"tiers.0.code": 4}, ["tiers.device.code = 4", "write one for all links", '"int4"']),
    "no codes": ({"tiers.0.code": {}}, ["tiers.device.code = {", "write one for all links"]),
    "unknown link": ({"tiers.0.code": {"upp": "int4"}}, ["tiers.device.code", "unknown link 'upp' (did you mean up?)"]),
    "unknown code of a link": (
        {"tiers.0.code": {"up": 4}},
        ["tiers.device.code", "4 is no code of up; known are fp32"],
    ),
    "unknown code of averages": (
        {"tiers.0.code": {"average": "int3"}},
        ["tiers.device.code", "'int3' is no code of average; known are fp32, bf16, int8, int4"],
    ),
    "code of a link that the top has not": (
        {"tiers.2.code": {"up": "int8"}},
        ['tiers.cloud.code.up = "int8": the tier has no machine above it; remove it'],
    ),
    "code of averages of one machine": (
        {"tiers.2.code": {"average": "int8"}},
        ['tiers.cloud.code.average = "int8": the tier has one machine, so nothing is averaged; remove it'],
    ),
    "unknown code to choose from": (
        {"tiers.0.code": ["int8", "int7"]},
        ["tiers.device.code", "'int7' is no code to choose from; known are fp32, bf16, int8, int4"],
    ),
    "auto among codes to choose from": (
        {"tiers.0.code": {"up": ["int8", "auto"]}},
        ["tiers.device.code", "write auto alone, or only the codes to choose from"],
    ),
    "nothing to choose from": ({"tiers.0.code": []}, ["tiers.device.code = []", "write one for all links"]),
    "a choice on a link that the top has not": (
        {"tiers.2.code": {"up": ["int8", "int4"]}},
        ["tiers.cloud.code.up = ['int8', 'int4']: the tier has no machine above it; remove it"],
    ),
    "noise of codes for other layers": (
        {"tiers.0.code": "auto", "convergence.coding_noise_up": [0.1, 0.2]},
        ["convergence.coding_noise_up has 2 numbers; the model has 5 layers and needs one for each"],
    ),
    "negative noise of codes": ({"convergence.coding_noise_down": [-1.0] * 5}, ["convergence.coding_noise_down"]),
    # training and convergence
    "unknown optimizer": ({"training.optimizer": "adagrad"}, ['training.optimizer = "adagrad"', "'adam' or 'adamw'"]),
    "unknown averaging": (
        {"training.averaging": "median"},
        ['training.averaging = "median"', "'plain', 'corrected', 'fedprox'"],
    ),
    "corrected averages of adam": (
        {"training.averaging": "corrected", "training.optimizer": "adam"},
        ['training.averaging = "corrected"', 'training.optimizer = "adam"', 'only with "sgd" and "momentum"'],
    ),
    "corrected averages of momentum that is averaged": (
        {"training.averaging": "corrected", "training.average_optimizer": True},
        ["training.average_optimizer = true", 'training.averaging = "corrected"', "remove average_optimizer"],
    ),
    "a pull without fedprox": (
        {"training.averaging": "fedadam", "training.proximal": 0.1},
        ['training.proximal = 0.1: only with averaging = "fedprox"; remove it'],
    ),
    "a server without steps": (
        {"training.server": {"learning_rate": 0.1}},
        ['training.server: averaging = "plain" has none', "fedavgm, fedadam, fedyogi, fedadagrad", "remove it"],
    ),
    "a server's setting of another rule": (
        {"training.averaging": "fedadam", "training.server": {"momentum": 0.5}},
        ['training.server.momentum = 0.5: averaging = "fedadam" has learning_rate, betas, tau; remove it'],
    ),
    "a server's unknown setting": (
        {"training.averaging": "fedavgm", "training.server": {"lr": 0.5}},
        ["unknown field training.server.lr", "learning_rate, momentum, betas, tau"],
    ),
    "a server's step of 0": (
        {"training.averaging": "fedavgm", "training.server": {"learning_rate": 0.0}},
        ["training.server.learning_rate = 0.0", "it should be greater than"],
    ),
    "three betas": (
        {"training.averaging": "fedadam", "training.server": {"betas": [0.9, 0.9, 0.9]}},
        ["training.server.betas", "2"],
    ),
    "a negative pull": (
        {"training.averaging": "fedprox", "training.proximal": -1.0},
        ["training.proximal = -1.0", "greater than or equal to 0"],
    ),
    "momentum without its optimizer": (
        {"training.momentum": 0.9},
        ["training.momentum = 0.9", 'optimizer = "momentum"'],
    ),
    "momentum of one": (
        {"training.optimizer": "momentum", "training.momentum": 1.0},
        ["training.momentum = 1.0", "less than 1"],
    ),
    "step above the bound": (
        {"training.learning_rate": 0.2},
        ["training.learning_rate = 0.2", "1/smoothness = 0.1282", "at most 0.1282"],
    ),
    "effective step above the bound": (
        {"training.learning_rate": 0.05, "training.optimizer": "momentum"},
        ["training.learning_rate = 0.05", "effective step 0.5 with momentum 0.9", "at most 0.01282"],
    ),
    "unknown drift": ({"convergence.drift": "papper"}, ['convergence.drift = "papper"', "'paper' or 'refined'"]),
    "target and rounds": ({"convergence.target": 3.0}, ["convergence", "both target and rounds", "exactly one"]),
    "neither target nor rounds": (TARGET, ["convergence", "neither target nor rounds", "exactly one"]),
    "slack without rounds": (
        {"convergence.rounds": ABSENT, "convergence.target": 5.0},
        ["convergence.slack = 0.5", "only with rounds"],
    ),
    "target under the noise floor": (
        # 7.8 * 0.01 * 15 / 6
        TARGET | {"convergence.target": 0.1, "convergence.gradient_variance": [1.0, 2.0, 3.0, 4.0, 5.0]},
        ["convergence.target = 0.1", "noise floor 0.195", "raise the target"],
    ),
    "variance of the wrong length": (
        {"convergence.gradient_variance": [1.0] * 4},
        ["convergence.gradient_variance", "4 numbers", "5 layers"],
    ),
    "second moment of the wrong length": (
        {"convergence.gradient_second_moment": [1.0] * 6},
        ["convergence.gradient_second_moment", "6 numbers", "5 layers"],
    ),
    "dissimilarity of the wrong length": (
        {"convergence.gradient_dissimilarity": [1.0] * 4},
        ["convergence.gradient_dissimilarity", "4 numbers", "5 layers"],
    ),
    "dissimilarity of too few tiers": (
        {"convergence.gradient_dissimilarity": [ONES] * 2},
        ["convergence.gradient_dissimilarity", "2 lists", "3 lists"],
    ),
    "ragged dissimilarity": (
        {"convergence.gradient_dissimilarity": [ONES, ONES, ONES[:4]]},
        ["convergence.gradient_dissimilarity", "[4, 5] numbers", "of 5"],
    ),
    "negative dissimilarity": (
        {"convergence.gradient_dissimilarity": [-1.0] * 5},
        ["convergence.gradient_dissimilarity[1] = -1.0", "greater than or equal to 0"],
    ),
    "negative dissimilarity of a tier": (
        {"convergence.gradient_dissimilarity": [ONES, ONES, [1.0, -2.0, 1.0, 1.0, 1.0]]},
        ["convergence.gradient_dissimilarity[3][2] = -2.0", "greater than or equal to 0"],
    ),
    "empty list": ({"convergence.gradient_variance": []}, ["convergence.gradient_variance = []", "at least 1"]),
    # memory
    "device too small": (
        {"tiers.0.memory": "1 kB"},
        # conv1 with batch 4: 4 * 2 * 37632 + 4992 bits = 38.26 kB
        ["tier 1 (device)", "needs 38.26 kB", "has 1 kB", "short of 37.26 kB", "tiers.device.memory"],
    ),
    "edge too small": (
        {"tiers.1.memory": "1 kB"},
        ["tier 2 (edge)", "has 1 kB", "short of", "tiers.edge.memory"],
    ),
    # models
    "two models": (
        {"model.profile": "p.csv"},
        ["model has name and profile", "exactly one of name, profile and factory"],
    ),
    "no model": ({"model": {}}, ["model has none", "exactly one of name, profile and factory"]),
    "unknown model": ({"model.name": "vgg61"}, ['model.name = "vgg61"', "did you mean vgg16?", "lenet5"]),
    "no such model": ({"model.name": "zzz"}, ['model.name = "zzz"', "known are vgg11"]),
    "factory without a shape": ({"model": {"factory": "a:b"}}, ["model.input_shape is missing", "[3, 32, 32]"]),
    "factory that is not there": (FACTORY, ["model.factory", "no_such_net:build", "no module no_such_net"]),
    "factory without a colon": (
        {"model": {"factory": "nonet", "input_shape": [8]}},
        ["model.factory", '"nonet"', "package.module:function"],
    ),
    "shape the model cannot take": ({"model.input_shape": [28, 28]}, ["model.", "lenet5", "28x28", "1x28x28"]),
    "shape too small for the model": ({"model.input_shape": [1, 4, 4]}, ["model.", "lenet5", "4x4", "12x12"]),
    "shape too large for any machine": (
        {"model.input_shape": [1, 10**6, 10**6]},
        ["model.input_shape = [1, 1000000, 1000000]", "at most 100,000,000"],
    ),
    "shape beyond any integer": ({"model.input_shape": [1, 28, 10**30]}, ["model.input_shape", "at most 100,000,000"]),
    "shape of too many sizes": ({"model.input_shape": [1] * 5000}, ["model.input_shape", "1 to 8 whole numbers"]),
    "factory of a huge shape": (
        {"model": {"factory": "net:build", "input_shape": [10**18]}},
        ["model.input_shape = [1000000000000000000]", "at most 100,000,000"],
    ),
    "empty profile": ({"model": {"profile": ""}}, ["model.profile", '""']),
    "profile that is a folder": ({"model": {"profile": "."}}, ["model.profile"]),
}

#: What is wrong with a profile: its text (None: no file), and what the sentence has to say besides the file's name.
BAD_PROFILES: dict[str, tuple[str | None, list[str]]] = {
    "missing": (None, ["no such layer profile", "hsfl profile"]),
    "empty": ("", ["column name", "missing"]),
    "missing columns": ("name,forward_flops\na,1\n", ["backward_flops", "missing", "a profile needs"]),
    "unknown column": (f"{HEADER},x\na,1,1,1,1,1,1,1\n", ["unknown column x", "known are"]),
    "not a number": (f"{HEADER}\na,1,1,1,1,1,0\nb,1,1,many,1,1,0\n", ["layer 2", "activation_bits", "'many'"]),
    "negative": (f"{HEADER}\na,1,1,1,1,-1,0\n", ["layer 1", "parameter_bits", "'-1'", "number"]),
    "ragged": (f"{HEADER}\na,1,1\n", ["layer 1", "3 cells", "7 columns"]),
    "too few layers": (f"{HEADER}\na,1,1,1,1,1,0\n", ["1 layers for 3 tiers"]),
    "no statistics": (f"{HEADER}\n" + "a,1,1,1,1,1,0\n" * 4, ["convergence.gradient_variance is missing", "4 numbers"]),
}

#: Files that are no scenario: their bytes, and what the sentence has to say besides the file's name.
BAD_FILES: dict[str, tuple[bytes, list[str]]] = {
    "empty": (b"", ["name is missing"]),
    "binary": (bytes(range(256)), ["UTF-8"]),
    "zeros": (bytes(100), ["not valid TOML", "line 1"]),
    "latin-1": ('name = "é"'.encode("latin-1"), ["UTF-8"]),
    "open bracket": (b'name = "x"\n[training\nbatch_size = 3\n', ["not valid TOML", "line 2"]),
    "open text": (b'name = "x"\nseed = 3\ndescription = "y\n', ["not valid TOML", "line 3"]),
    "bare text": (b"name = \n", ["not valid TOML", "line 1"]),
    "field twice": (b"name = 'a'\nname = 'b'\n", ["not valid TOML", "line 2"]),
    "nested without end": (b"a = " + b"[" * 100_000, ["nested too deeply"]),
    "json": (b'{"name": "x"}', ["not valid TOML", "line 1"]),
    "prose": (b"Dear planner,\n", ["not valid TOML", "line 1"]),
}

BAD_CALLS: dict[str, tuple[list[str], list[str]]] = {
    "missing file": (["plan", "none.toml"], ["none.toml: no such file", "paper", "hsfl init"]),
    "misspelt scenario": (["plan", "papre"], ["papre: no such file or built-in scenario", "did you mean paper?"]),
    "folder": (["plan", "folder"], ["folder: is a folder"]),
    "name too long": (["plan", "x" * 5000], ["xxx…: no such file"]),
    "empty argument": (["plan", ""], ["no such file"]),
    "no argument": (["plan"], ["Missing argument", "scenario"]),
    "two arguments": (["plan", "good.toml", "paper"], ["paper"]),
    "unknown option": (["plan", "good.toml", "--compar"], ["--compar", "--compare"]),
    "unknown command": (["pln", "good.toml"], ["pln"]),
    "option without value": (["plan", "good.toml", "--set"], ["--set"]),
    "--set without =": (["plan", "good.toml", "--set", "seed"], ["--set seed", "FIELD=VALUE"]),
    "--set without a field": (["plan", "good.toml", "--set", "=3"], ["--set =3", "FIELD=VALUE"]),
    "--set of an unknown tier": (
        ["plan", "good.toml", "--set", "tiers.devise.uplink=3"],
        ["good.toml", "tiers.devise.uplink", "did you mean device?", "device, edge, cloud"],
    ),
    "--set of tier 0": (["plan", "good.toml", "--set", "tiers.0.uplink=3"], ["no tier '0'", "device, edge, cloud"]),
    "--set of an unknown field": (
        ["plan", "good.toml", "--set", "tiers.device.uplnk=3"],
        ["good.toml", "tiers.device.uplnk", "did you mean uplink?"],
    ),
    "--set of an unknown section": (["plan", "good.toml", "--set", "trainig.x=3"], ["trainig", "training?"]),
    "--set below a value": (["plan", "good.toml", "--set", "seed.x=3"], ["seed.x", "not a section"]),
    "--set of a whole tier": (["plan", "good.toml", "--set", "tiers.edge=3"], ["tiers.edge", "a tier and a field"]),
    "--set to a bad value": (
        ["plan", "good.toml", "--set", "tiers.device.uplink=20 Mbsp"],
        ["good.toml", 'tiers.device.uplink = "20 Mbsp"', RATE],
    ),
    "unknown method": (["plan", "good.toml", "--method", "magic"], ["'magic'", "exact, bcd"]),
    "bcd knows no cohorts": (
        ["plan", "good.toml", "--method", "bcd", "--set", "participation.cohort=2"],
        ['method "bcd"', "no cohorts"],
    ),
    "bcd cannot plan the step": (
        ["plan", "good.toml", "--method", "bcd", "--optimize-learning-rate"],
        ["only the exact method"],
    ),
    "time limit below 0": (["plan", "good.toml", "--time-limit", "-1"], ["--time-limit", "0"]),
    "time limit in words": (["plan", "good.toml", "--time-limit", "long"], ["--time-limit = long", "a number"]),
    "too few seeds": (["reproduce", "fig8", "--seeds", "0"], ["--seeds = 0: it should be greater than or equal to 1"]),
    "half a round": (["train", "good.toml", "--rounds", "2.5"], ["--rounds = 2.5: it should be a whole number"]),
    "no figure, in a list": (["reproduce", "all", "fig8x", "--list"], ["fig8x: no such figure", "fig8"]),
    "auto among codes": (["plan", "good.toml", "--code", "auto,int4"], ["write auto alone, or only the codes"]),
    "--sweep without =": (["plan", "good.toml", "--sweep", "seed"], ["--sweep seed", "FIELD=A,B,C"]),
    "--sweep without values": (["plan", "good.toml", "--sweep", "seed="], ["--sweep seed=", "FIELD=A,B,C"]),
    "--sweep of an unknown field": (
        ["plan", "good.toml", "--sweep", "training.batch=8,16"],
        ["--sweep training.batch=8,16", "unknown field training.batch", "batch_size"],
    ),
    "--sweep over nonsense": (
        ["plan", "good.toml", "--sweep", "training.batch_size=a,b"],
        ['training.batch_size = "a"', "whole number"],
    ),
    "--sweep and --compare": (
        ["plan", "good.toml", "--sweep", "seed=1,2", "--compare"],
        ["--compare and --sweep", "leave one out"],
    ),
    "--plot of an unknown kind": (["plan", "good.toml", "--plot", "x.xyz"], ["x.xyz", "png"]),
    "--plot without a suffix": (["plan", "good.toml", "--plot", "x"], ["x: ", "png"]),
    "--plot into no folder": (["plan", "good.toml", "--plot", "none/x.png"], ["none/x.png", "cannot be written"]),
    "--plot below a file": (
        ["plan", "good.toml", "--plot", "good.toml/x.png"],
        ["good.toml/x.png", "cannot be written"],
    ),
    "--plot onto a folder": (["plan", "good.toml", "--plot", "folder.png"], ["folder.png: "]),
    "--plot with a name too long": (
        ["plan", "good.toml", "--plot", "x" * 300 + ".png"],
        ["x.png", "cannot be written"],
    ),
    "sweep plot of an unknown kind": (
        ["plan", "good.toml", "--sweep", "seed=1,2", "--plot", "x.xyz"],
        ["x.xyz", "png"],
    ),
    "init onto a file": (["init", "good.toml"], ["good.toml: exists already", "another name"]),
    "init onto a folder": (["init", "folder"], ["folder: cannot be written", "another place"]),
    "init from nothing": (["init", "new.toml", "--from", "papre"], ["--from papre", "paper"]),
    "init into no folder": (["init", "none/new.toml"], ["none/new.toml", "cannot be written"]),
    "init with a name too long": (["init", "x" * 300], ["xxx", "cannot be written"]),
    "init without a name": (["init", ""], ["choose another"]),
    "init without a file": (["init"], ["Missing argument", "file"]),
    "unknown model": (["profile", "vgg61"], ["vgg61", "did you mean vgg16?"]),
    "factory without --input": (["profile", "net:build"], ["net:build", "--input 3,32,32"]),
    "factory that is not there": (["profile", "no_such_net:build", "--input", "4"], ["no_such_net:build", "no module"]),
    "--input in words": (["profile", "lenet5", "--input", "big"], ["--input big", "3,32,32"]),
    "--input of nothing": (["profile", "lenet5", "--input", "1,0,28"], ["--input 1,0,28", "at least 1"]),
    "--input the model cannot take": (["profile", "lenet5", "--input", "28,28"], ["lenet5", "28x28", "1x28x28"]),
    "--input beyond any memory": (["profile", "lenet5", "--input", "1,1000000,1000000"], ["1000000"]),
    "--input beyond any integer": (["profile", "net:build", "--input", "9" * 30], ["--input 999", "100,000,000"]),
    "--input of too many sizes": (
        ["profile", "lenet5", "--input", "1," * 5000 + "1"],
        ["--input 1,1", "1 to 8 whole numbers"],
    ),
    "unknown --averaging": (
        ["plan", "paper", "--averaging", "median"],
        ['training.averaging = "median"', "'plain', 'corrected', 'fedprox'"],
    ),
    "unknown --optimizer": (["profile", "lenet5", "--optimizer", "adagrad"], ["--optimizer adagrad", "adamw"]),
    "--batch-size 0": (["profile", "lenet5", "--batch-size", "0"], ["--batch-size", "1"]),
    "--csv onto a file": (["profile", "lenet5", "--csv", "good.toml"], ["good.toml: exists already"]),
    "--csv into no folder": (["profile", "lenet5", "--csv", "none/x.csv"], ["none/x.csv", "cannot be written"]),
    "scenarios with an argument": (["scenarios", "paper"], ["paper"]),
}


def assert_one_sentence(ended: Ended, says: list[str]) -> None:
    assert ended.code == 2, ended
    assert ended.out == ""
    assert ended.err.startswith("hsfl: ") and ended.err.endswith("\n") and ended.err.count("\n") == 1, ended.err
    assert "Traceback" not in ended.err
    for part in says:
        assert part in ended.err, f"{part!r} is not in {ended.err!r}"


@pytest.mark.parametrize("case", BAD_FIELDS)
def test_bad_field(case, command, tmp_path):
    changes, says = BAD_FIELDS[case]
    write(tmp_path, changed(changes), "bad.toml")
    before = contents(tmp_path)
    assert_one_sentence(command("plan", "bad.toml"), ["bad.toml: ", *says])
    assert contents(tmp_path) == before


@pytest.mark.parametrize("case", BAD_PROFILES)
def test_bad_profile(case, command, tmp_path):
    text, says = BAD_PROFILES[case]
    write(tmp_path, changed({"model": {"profile": "layers.csv"}}), "bad.toml")
    if text is not None:
        (tmp_path / "layers.csv").write_text(text)
    named = "bad.toml: " if case in ("too few layers", "no statistics") else "layers.csv: "
    before = contents(tmp_path)
    assert_one_sentence(command("plan", "bad.toml"), [named, *says])
    assert contents(tmp_path) == before


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_file(case, command, tmp_path):
    data, says = BAD_FILES[case]
    (tmp_path / "bad.toml").write_bytes(data)
    assert_one_sentence(command("plan", "bad.toml"), ["bad.toml: ", *says])
    assert contents(tmp_path) == {"bad.toml": data}


@pytest.mark.parametrize(
    ("before", "opening", "inner", "closing"),
    [
        ("name = ", "[", "", "]"),
        ("batch_size = 4", "[", "1", "]"),
        ('uplink = "10 Mbps"', "{uniform = ", "1", "}"),
        ("seed = 3", "{a = ", "1", "}"),
        ("slack = 0.5", "[", "1", "]"),
    ],
)
def test_whatever_its_depth_a_nested_value_is_one_sentence(before, opening, inner, closing, tmp_path):
    """Python's own limit is met by the parser, by the check or by the sentence about the value, as it is deeper."""
    text, path = to_toml(SMALL), tmp_path / "deep.toml"
    field = before.partition("=")[0]
    for depth in (*range(1, 2001, 73), *range(300, 500, 10)):
        path.write_text(text.replace(before, f"{field}= {opening * depth}{inner}{closing * depth}  #"))
        with pytest.raises(hsfl.HsflError):
            hsfl.load_scenario(path)


def test_an_override_nested_without_end_is_one_sentence():
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(hsfl.HsflError, match=r"training\.batch_size: nested too deeply"):
        hsfl.load_scenario("paper", {"training.batch_size": endless})


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_call(case, command, tmp_path):
    args, says = BAD_CALLS[case]
    write(tmp_path, SMALL, "good.toml")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.png").mkdir()
    before = contents(tmp_path)
    assert_one_sentence(command(*args), says)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["plan", "bad.toml"], ["bad.toml: ", 'training.batch_size = "many"', "whole number"]),
        (["plan", "none.toml"], ["none.toml: no such file"]),
        (["plan", "bad.toml", "--nonsense"], ["--nonsense"]),
        (["init", "bad.toml"], ["bad.toml: exists already"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_as_a_process_of_its_own(args, says, tmp_path):
    write(tmp_path, changed({"training.batch_size": "many"}), "bad.toml")
    before = contents(tmp_path)
    assert_one_sentence(process(*args, cwd=tmp_path), says)
    assert contents(tmp_path) == before


def test_the_small_scenario_itself_is_good(command, tmp_path):
    """What makes every test above mean something."""
    write(tmp_path, SMALL, "good.toml")
    ended = command("plan", "good.toml")
    assert ended.code == 0 and ended.err == "" and "Time to target" in ended.out


def test_a_file_written_by_a_windows_editor_is_good(command, tmp_path):
    text = "\ufeff" + to_toml(SMALL).replace("\n", "\r\n")
    (tmp_path / "windows.toml").write_bytes(text.encode("utf-8"))
    ended = command("plan", "windows.toml")
    assert ended.code == 0, ended.err


def test_an_error_is_one_line_in_python_too(tmp_path):
    """The command folds lines; whoever calls hsfl from Python gets the message as it is."""
    for changes in ({"tiers.1.name": "a\nb"}, {"a\nb": 1}, {"model.name": "x\ny"}, {"training.optimizer": "x\ny"}):
        path = write(tmp_path, changed(changes))
        with pytest.raises(hsfl.HsflError) as caught:
            hsfl.load_scenario(path)
        assert "\n" not in str(caught.value), changes


JARGON = ("instance of", "after validation", "dictionary", "match pattern", "Section", "datetime", "Errno", "codec")


@pytest.mark.parametrize(
    "changes",
    [
        {"training": 3},
        {"tiers": [1, 2]},
        {"tiers": SMALL["tiers"][2:]},
        {"convergence.gradient_variance": []},
        {"tiers.1.name": "a.b"},
        {"tiers.1.name": ""},
        {"model": {"profile": ""}},
        {"convergence.gradient_dissimilarity": [[], [], []]},
        {"training.learning_rate": 10**400},
    ],
    ids=str,
)
def test_a_sentence_speaks_of_the_file_and_not_of_the_program(changes, command, tmp_path):
    write(tmp_path, changed(changes), "bad.toml")
    ended = command("plan", "bad.toml")
    assert_one_sentence(ended, ["bad.toml"])
    assert not [word for word in JARGON if word in ended.err], ended.err
    assert ".." not in ended.err.replace("...", ""), "an empty part of a path"


@pytest.mark.parametrize(
    "changes",
    [
        {"tiers.1.fed_uplink": 1e-310},
        {"tiers.0.compute": 1e-300},
        {"tiers.0.compute": 1e300, "tiers.1.compute": 1e300, "tiers.2.compute": 1e300},
        {"convergence.initial_gap": 1e308},
        {"convergence.initial_gap": 1e308, "convergence.rounds": 1e-308},
        {"convergence.smoothness": 1e200, "training.learning_rate": 1e-200},
        {"convergence.smoothness": 1e-200, "training.learning_rate": 1e200},
        {"convergence.rounds": 1e-300},
        {"convergence.rounds": 1e300},
        {"convergence.slack": 1e308},
        {"convergence.gradient_second_moment": [1e308] * 5},
        {"convergence.gradient_variance": [1e308] * 5},
        {"participation": {"cohort": 2}, "convergence.gradient_dissimilarity": [1e308] * 5},
        {"participation": {"cohort": 2}, "convergence.gradient_dissimilarity": [0.0] * 5},
        {"participation": {"cohort": 1}, "convergence.smoothness": 1e-200, "training.learning_rate": 1e200},
    ],
    ids=str,
)
def test_absurd_sizes_give_a_finite_plan_or_one_sentence(changes, command, tmp_path, recwarn):
    write(tmp_path, changed(changes), "absurd.toml")
    for options in ([], ["--optimize-learning-rate"], ["--method", "bcd"], ["--compare"]):
        with no_longer_than(60):
            ended = command("plan", "absurd.toml", *options)
        assert not recwarn.list, (options, str(recwarn.list[0].message))
        if ended.code:
            assert_one_sentence(ended, ["absurd.toml"])
        else:
            assert ended.err == ""
            assert "nan" not in ended.out and "never reached" not in ended.out


def test_a_profile_of_absurd_sizes_gives_a_finite_plan_or_one_sentence(command, tmp_path, recwarn):
    rows = f"{HEADER},gradient_variance,gradient_second_moment\n" + "a,1e308,1e308,1e308,1e308,1e308,0,1,1\n" * 4
    (tmp_path / "layers.csv").write_text(rows)
    write(tmp_path, changed({"model": {"profile": "layers.csv"}}), "absurd.toml")
    ended = command("plan", "absurd.toml")
    assert not recwarn.list, str(recwarn.list[0].message)
    if ended.code:
        assert_one_sentence(ended, ["layers.csv"])
    else:
        assert "nan" not in ended.out and "never reached" not in ended.out


def test_more_machines_than_memory_end_in_one_sentence(tmp_path):
    """Every tier is within its own limit, all of them together are not."""
    tiers = [{**SMALL["tiers"][0], "name": f"t{i}", "entities": 20_000_000} for i in range(4)]
    write(tmp_path, changed({"tiers": [*tiers, SMALL["tiers"][2]]}), "huge.toml")
    limit = 5 << 28
    ended = subprocess.run(
        [sys.executable, "-m", "hsfl", "plan", "huge.toml"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(SOURCE), "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert_one_sentence(Ended(ended.returncode, ended.stdout, ended.stderr), ["entities"])


def test_init_leaves_an_existing_file_as_it_is(command, tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_bytes(b"my own work\r\n\x00\xff")
    assert_one_sentence(command("init", "mine.toml"), ["mine.toml: exists already"])
    assert contents(tmp_path) == {"mine.toml": b"my own work\r\n\x00\xff"}


@pytest.mark.parametrize("args", [["init", "a.toml"], ["profile", "lenet5", "--csv", "a.toml"]], ids=lambda a: a[0])
def test_a_refusal_touches_no_neighbour(args, command, tmp_path):
    """Whatever the command writes to first must not be a file the user may have."""
    for name in ("a.toml", "a.toml.part", "a.toml.tmp", "a.toml~"):
        (tmp_path / name).write_text(f"my own {name}")
    before = contents(tmp_path)
    assert_one_sentence(command(*args), ["a.toml: exists already"])
    assert contents(tmp_path) == before


@pytest.mark.parametrize("args", [["init", "a.toml"], ["plan", "good.toml", "--plot", "a.png"]], ids=lambda a: a[0])
def test_a_success_touches_no_neighbour(args, command, tmp_path):
    write(tmp_path, SMALL, "good.toml")
    for name in ("a.toml.part", "a.png.part", "a.toml.tmp", "a.png.tmp"):
        (tmp_path / name).write_text(f"my own {name}")
    before = contents(tmp_path)
    assert command(*args).code == 0
    after = contents(tmp_path)
    assert {name: after.get(name) for name in before} == before
    assert len(after) == len(before) + 1


def test_a_failed_plot_leaves_an_existing_picture_as_it_is(command, tmp_path):
    write(tmp_path, changed({"tiers.0.memory": "1 kB"}), "bad.toml")
    (tmp_path / "old.png").write_bytes(b"old")
    assert command("plan", "bad.toml", "--plot", "old.png").code == 2
    assert (tmp_path / "old.png").read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.toml", "old.png"]


def test_every_field_of_the_file_is_guarded_against_a_wrong_type(command, tmp_path):
    """No field takes a table of nonsense, wherever it stands."""
    raw = changed({"tiers.0.memory": "1 GB", "description": "x", "convergence.gradient_variance": ONES})
    places = [(key,) for key in raw] + [(s, k) for s in ("model", "training", "convergence") for k in raw[s]]
    places += [("tiers", "0", key) for key in raw["tiers"][0]]
    for place in places:
        path = ".".join(place)
        write(tmp_path, changed({path: {"nonsense": {"deep": [NAN]}}}, base=raw), "bad.toml")
        shown = path.replace("tiers.0", "tiers.device" if place[-1] != "name" else "tiers[1]")
        assert_one_sentence(command("plan", "bad.toml"), ["bad.toml", shown])


def test_the_catalog_holds_nothing_that_is_refused(command):
    for path in sorted((CATALOG / "scenarios").iterdir(), key=str):
        assert command("plan", str(path), "--time-limit", "5").code == 0
