//! Which proofs are not about boxes that container engines make, and why. Every other proof holds there as it stands;
//! where it names a difference, it says so in place.

use crate::{
    denials, machine, network, processes, programs,
    runner::Proof,
    staying, syscalls, terminal,
    world::{Mode, World},
};

const FOLDER: &str = "a folder is not an image of a container engine; it is refused";
const LEFT_OUT: &str =
    "it is about a box that lacks a step, and no container engine leaves one out";
const OF_THE_HOST: &str = "a container shows its image and nothing of the host's system";

/// Those proofs, each with the reason. That there are no more of them is claimed here, too.
const NOT_APPLICABLE: [(&str, &str); 14] = [
    ("a_program_runs_in_a_root_of_its_own", FOLDER),
    ("an_image_is_read_only", FOLDER),
    ("links_in_an_image_lead_nowhere_outside", FOLDER),
    ("images_that_are_none_are_refused", FOLDER),
    (
        "the_machine_is_as_large_in_images_and_with_all_of_etc",
        FOLDER,
    ),
    (
        "the_permissive_profile_shows_the_system_without_secrets_and_sockets",
        OF_THE_HOST,
    ),
    (
        "the_permissive_profile_opens_no_folder_that_is_shut",
        OF_THE_HOST,
    ),
    ("without_the_step_the_files_are_those_of_the_host", LEFT_OUT),
    ("pids_are_limited_without_cgroups_too", LEFT_OUT),
    (
        "pids_are_limited_without_resource_limits_where_there_are_cgroups",
        LEFT_OUT,
    ),
    ("path_rules_allow_terminals_and_nothing_more", LEFT_OUT),
    (
        "the_hosts_network_is_reported_as_missing_barriers",
        "no container is made on the host's network; it is refused",
    ),
    (
        "terminals_of_a_box_are_few",
        "their number is the engine's; the limit of open files holds it down",
    ),
    (
        "a_sandbox_made_ahead_tells_as_much",
        "containers are not made ahead",
    ),
];

/// The others. What our own first process holds, whoever made the box, is proven with Docker's, and what does not
/// depend on whose it is with those of root's; everything with all of them only where everything is asked for.
pub(crate) fn applicable<'a>(all: &[Proof], chosen: &[&'a Proof], world: &World) -> Vec<&'a Proof> {
    let full = std::env::var_os("AIRLOCK_FULL").is_some();
    let podman = world
        .maker
        .as_ref()
        .is_some_and(|maker| maker.backend == "podman");
    let mut elsewhere = Vec::new();
    if podman && !full {
        elsewhere.extend([
            denials::proofs(),
            programs::proofs(),
            syscalls::proofs(),
            terminal::proofs(),
        ]);
        elsewhere.push(staying::by_first_process());
    }
    if world.mode == Mode::User && !full {
        elsewhere.extend([machine::proofs(), network::proofs(), processes::proofs()]);
    }
    let elsewhere = elsewhere.concat();
    let left_out = |proof: &Proof| elsewhere.iter().any(|other| other.name == proof.name);
    for (name, _) in NOT_APPLICABLE {
        assert!(
            all.iter().any(|proof| proof.name == name),
            "`{name}` is no proof"
        );
    }
    let excepted = |proof: &Proof| NOT_APPLICABLE.iter().any(|(name, _)| proof.name == *name);
    chosen
        .iter()
        .filter(|proof| !excepted(proof) && !left_out(proof))
        .copied()
        .collect()
}
